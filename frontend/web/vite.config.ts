import tailwindcss from "@tailwindcss/vite";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

/**
 * `data-theme="auto"` follows the visitor's preference without script: the dark
 * block of tokens.css is repeated under the media query, so it is written once.
 */
function autoTheme(): Plugin {
  const tokens = here("src/styles/tokens.css");
  return {
    name: "finetender-auto-theme",
    enforce: "pre",
    transform(css, id) {
      if (!id.endsWith("/styles/main.css")) return null;
      this.addWatchFile(tokens);
      const dark = /:root\[data-theme="dark"\]\s*(\{[^}]*\})/.exec(readFileSync(tokens, "utf8"))?.[1];
      if (!dark) throw new Error("tokens.css has no dark block");
      const block = `@media (prefers-color-scheme: dark) { :root[data-theme="auto"] ${dark} }`;
      return `${css}\n@layer theme { ${block} }\n`;
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [autoTheme(), tailwindcss()],
  build: {
    outDir: here("../../marketplace/web/static/web/build"),
    emptyOutDir: true,
    manifest: "manifest.json",
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      input: {
        styles: here("src/styles/main.css"),
        main: here("src/main.ts"),
        adapter: here("src/adapter/page.ts"),
        job: here("src/job/page.ts"),
        compare: here("src/job/compare.ts"),
        bid: here("src/bid/page.ts"),
        data: here("src/data/page.ts"),
        decided: here("src/bid/decided.ts"),
        joining: here("src/console/joining.ts"),
        keys: here("src/console/keys.ts"),
        market: here("src/market/page.ts"),
        expressForm: here("src/express/form.ts"),
        expressAnswer: here("src/express/answer.ts"),
        pay: here("src/pay/page.ts"),
        playground: here("src/playground/page.ts"),
        quote: here("src/quote/page.ts"),
        verify: here("src/verify/page.ts"),
      },
    },
  },
});
