// A run as a program that executes without its services: every step returns, or raises, what was recorded.
import { stepName } from "./waterfall.js";

const py = (value) =>
  value === null || value === undefined ? "None"
  : value === true ? "True"
  : value === false ? "False"
  : typeof value === "number" ? String(value)
  : typeof value === "string" ? JSON.stringify(value).replace(/[\u007f-\u{10ffff}]/gu, (one) => `\\U${one.codePointAt(0).toString(16).padStart(8, "0")}`)
  : Array.isArray(value) ? `[${value.map(py).join(", ")}]`
  : `{${Object.entries(value).map(([name, one]) => `${py(name)}: ${py(one)}`).join(", ")}}`;

export function script(run) {
  const steps = run.steps.filter((one) => ["step", "map"].includes(one.kind));
  const recorded = steps.map((one) => (one.error ? { error: `${one.error.type}: ${one.error.message}` } : { result: one.result }));
  const calls = steps.map((one, at) => {
    const given = one.key ? [] : Array.isArray(one.args) ? one.args : one.args ? [one.args] : [];
    const options = one.key ? `, key=${py(one.key)}` : "";
    return `        run.step(${py(one.name)}, recorded(${at})${given.map((arg) => `, ${py(arg)}`).join("")}${options})  # ${JSON.stringify(stepName(one)).slice(1, -1)}: ${one.status}`;
  });
  return `"""The run ${JSON.stringify(run.id).slice(1, -1).replaceAll('"""', "")} as it was recorded (${run.status}). No service is called: put real functions in place of recorded(…)."""

from tenuto import Tenuto

RECORDED = [
${recorded.map((one) => `    ${py(one)},`).join("\n")}
]


def recorded(number):
    def step(*args, **kwargs):
        print(number, args)
        if "error" in RECORDED[number]:
            raise RuntimeError(RECORDED[number]["error"])
        return RECORDED[number]["result"]

    return step


with Tenuto("replay", "volatile:") as agent:
    with agent.run(${py(run.id)}) as run:
${calls.join("\n") || "        pass"}
        run.result = ${py(run.result)}
`;
}
