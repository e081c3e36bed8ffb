// Builds the inspector's page into the package: node build.mjs [folder]. The same input gives the same bytes.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const to = process.argv[2] ?? join(here, "../src/tenuto/servers/inspector/static");
mkdirSync(to, { recursive: true });
// What it is built from, so that a test without node sees when the sources have changed since.
const digest = createHash("sha256");
for (const name of [...readdirSync(join(here, "src")).sort().map((one) => `src/${one}`), "package-lock.json"]) {
  digest.update(name + "\0").update(readFileSync(join(here, name)));
}
await build({
  absWorkingDir: here,
  entryPoints: ["src/app.js", "src/app.css"],
  outdir: to,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome110", "firefox115", "safari16.4"],
  legalComments: "none",
  charset: "utf8",
  banner: { js: "// Built from inspector/src by inspector/build.mjs. With Preact, its signals (MIT) and htm (Apache-2.0).\n// Sources: " + digest.digest("hex") },
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(to, name));
