// Runs benchmarks/k6.js in Node: `node run.mjs SCRIPT FOLDER` with {env, replies, iterations} on standard input.
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { seen, told } from './k6.mjs';

const [script, folder] = process.argv.slice(2);
const asked = JSON.parse(fs.readFileSync(0, 'utf-8'));
const shim = pathToFileURL(path.join(import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname), 'k6.mjs'));
const source = fs.readFileSync(script, 'utf-8').replace(/from 'k6(\/[a-z]+)?'/g, `from '${shim}'`);
const copy = path.join(folder, 'k6_copy.mjs');
fs.writeFileSync(copy, source);

globalThis.__ENV = asked.env;
told(asked.replies);
const module = await import(pathToFileURL(copy));
const data = module.setup();
for (let number = 0; number < asked.iterations; number += 1) module.default(data);
console.log(JSON.stringify({ ...seen, options: module.options }));
