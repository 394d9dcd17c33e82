/**
 * Stripe.js of the stand-in: named test cards to choose from and no field for a number, so that
 * a real number cannot be typed.
 */
import type { Confirmation, Elements, StripeClient } from "./stripe";

const CARDS: readonly (readonly [name: string, label: string])[] = [
  ["pm_card_visa", "Works"],
  ["pm_card_chargeDeclined", "Is declined"],
  ["pm_card_chargeDeclinedInsufficientFunds", "Has no funds"],
  ["pm_card_chargeDeclinedExpiredCard", "Has expired"],
  ["pm_card_authenticationRequired", "Asks for confirmation"],
  ["pm_card_createDispute", "Pays and is disputed"],
];

interface Intent {
  error?: { message?: string };
  next_action?: { redirect_to_url?: { url: string } } | null;
}

export function connectToStandIn(apiUrl: string, publishableKey: string): StripeClient {
  let secret = "";
  let host: HTMLElement | null = null;
  const elements: Elements = {
    create: () => ({
      mount(into) {
        host = into;
        into.replaceChildren(listCards());
      },
    }),
  };
  return {
    elements({ clientSecret }) {
      secret = clientSecret;
      return elements;
    },
    async confirmPayment({ confirmParams }): Promise<Confirmation> {
      const card = host?.querySelector<HTMLInputElement>("input[name=test-card]:checked")?.value;
      if (!card) return { error: { message: "Choose a test card." } };
      const answer = await fetch(`${apiUrl}/v1/payment_intents/${nameIntent(secret)}/confirm`, {
        method: "POST",
        credentials: "omit",
        headers: { Authorization: `Bearer ${publishableKey}` },
        body: new URLSearchParams({
          client_secret: secret,
          payment_method: card,
          return_url: confirmParams.return_url,
        }),
      });
      const intent = (await answer.json()) as Intent;
      if (intent.error) return { error: intent.error };
      const bank = intent.next_action?.redirect_to_url?.url;
      // As Stripe's own: the page is left, so the answer never comes.
      if (bank) {
        location.assign(bank);
        return new Promise(() => undefined);
      }
      return {};
    },
  };
}

/** ``pi_1`` of ``pi_1_secret_2``. */
export function nameIntent(clientSecret: string): string {
  return clientSecret.split("_secret_")[0] ?? "";
}

function listCards(): HTMLElement {
  const group = document.createElement("fieldset");
  const legend = document.createElement("legend");
  legend.className = "label";
  legend.textContent = "A test card that";
  group.append(legend);
  CARDS.forEach(([name, label], index) => {
    const choice = document.createElement("input");
    Object.assign(choice, { type: "radio", name: "test-card", value: name, checked: index === 0 });
    const words = document.createElement("span");
    words.textContent = label;
    const row = document.createElement("label");
    row.className = "row";
    row.append(choice, words);
    group.append(row);
  });
  return group;
}
