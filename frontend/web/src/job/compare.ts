/** Loss curves of several jobs over each other (`presenters/comparison.py`). */
import { lineChart, niceTicks, onResize, padded, smooth, type Point } from "../shared/chart";
import { byId, pageData } from "../shared/dom";
import { count } from "../shared/format";

interface Line {
  name: string;
  tone: string;
  train: Point[];
  valid: Point[];
}

const SMOOTHED = 0.7;

function show(svg: SVGSVGElement, lines: readonly Line[]): void {
  const points = lines.flatMap((line) => [...line.train, ...line.valid]);
  if (!points.length) return;
  const values = points.map(([, loss]) => loss);
  const end = Math.max(1, ...points.map(([step]) => step));
  const y = padded(Math.min(...values), Math.max(...values));
  const last = (line: Line) => line.valid.at(-1)?.[1].toFixed(3) ?? "unknown";
  lineChart(svg, {
    series: [
      ...lines.map(({ train, tone }) => ({ points: smooth(train, SMOOTHED), tone, dot: true })),
      ...lines.map(({ valid, tone }) => ({ points: valid, tone, each: true })),
    ],
    x: [0, end],
    y,
    xTicks: [0, 0.25, 0.5, 0.75, 1].map((share) => [
      share * end,
      share === 1 ? `${count(Math.round(end))} steps` : count(Math.round(share * end)),
    ]),
    yTicks: niceTicks(...y).map((value) => [value, String(value)] as const),
    yName: "nats per token",
    left: 44,
    label: lines.map((line) => `${line.name}: validation loss ${last(line)}`).join("; "),
  });
  svg.dataset["lines"] = String(lines.length);
}

const svg = byId<SVGSVGElement>("chart-compare");
const lines = pageData<Line[]>("compare-data");
if (svg && lines) onResize(svg, () => show(svg, lines));
