// Writes the libraries of the page into src/stoker/ui/vendor: one pinned ES module each, and MANIFEST.json.
//
//   node tools/vendor_ui.mjs           writes the files; run it when a version below changes, never at install
//   node tools/vendor_ui.mjs --check   writes nothing; exits with 1 if the files are not what the versions give
//
// It exits with 3 where npm cannot install the packages.
//
// It needs node and npm, and takes the packages from npm's registry. No script of a package runs.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';

const VERSIONS = {
  preact: '11.2.0', '@preact/signals': '2.11.4', '@preact/signals-core': '1.14.5', htm: '3.1.1',
  marked: '18.2.1', dompurify: '3.4.18', katex: '0.19.1', 'highlight.js': '11.12.0',
};
const LANGUAGES = [
  'bash', 'c', 'cpp', 'csharp', 'css', 'diff', 'dockerfile', 'go', 'ini', 'java', 'javascript', 'json', 'kotlin', 'lua',
  'makefile', 'markdown', 'php', 'python', 'r', 'ruby', 'rust', 'sql', 'swift', 'typescript', 'xml', 'yaml',
];
const ESBUILD = '0.28.2';
const FILES = {
  'preact.js': {
    packages: ['preact', '@preact/signals', '@preact/signals-core', 'htm'],
    entry: `export { h, render, Fragment } from 'preact';
export { useState, useEffect, useRef, useMemo, useLayoutEffect } from 'preact/hooks';
export { signal, computed, effect, batch } from '@preact/signals';
import htm from 'htm'; import { h } from 'preact'; export const html = htm.bind(h);`,
  },
  'markdown.js': {
    packages: ['marked', 'dompurify'],
    entry: `export { Marked, Lexer } from 'marked'; export { default as purify } from 'dompurify';`,
  },
  'katex.js': { packages: ['katex'], entry: `export { default as katex } from './node_modules/katex/katex.ts';` },
  'highlight.js': {
    packages: ['highlight.js'],
    entry: `import hljs from 'highlight.js/lib/core';
${LANGUAGES.map((name) => `import ${name} from 'highlight.js/lib/languages/${name}'; hljs.registerLanguage('${name}', ${name});`).join('\n')}
export { hljs };`,
  },
};
/** Of KaTeX, what only HTML needs is left out, 30 % of it: widths of letters and shapes of braces. The page asks for MathML. */
const STUBS = {
  fontMetricsData: `export default { 'Main-Regular': { 65: [0, 0.68333, 0, 0, 0.75], 84: [0, 0.68333, 0, 0, 0.72222] } };`,
  svgGeometry: `const none = () => ''; export { none as innerPath, none as phasePath, none as sqrtPath, none as tallDelim }; export const path = {};`,
};
const STUBBED = /katex[\\/]src[\\/](fontMetricsData|svgGeometry)\.(js|ts)$/;
const withoutHtml = {
  name: 'without-html',
  setup(build) {
    build.onLoad({ filter: STUBBED }, (file) => ({ contents: STUBS[STUBBED.exec(file.path)[1]], loader: 'js' }));
  },
};
const VENDOR = path.join(import.meta.dirname, '..', 'src', 'stoker', 'ui', 'vendor');

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vendor-ui-'));
try {
  const written = await build(folder);
  if (process.argv.includes('--check')) check(written);
  else for (const [name, text] of written) fs.writeFileSync(path.join(VENDOR, name), text);
} finally {
  fs.rmSync(folder, { recursive: true });
}

async function build(at) {
  fs.writeFileSync(path.join(at, 'package.json'), '{"private": true}');
  const wanted = Object.entries({ ...VERSIONS, esbuild: ESBUILD }).map(([name, version]) => `${name}@${version}`);
  install(wanted, at);
  const esbuild = createRequire(path.join(at, 'package.json'))('esbuild');
  const written = new Map();
  const manifest = {};
  for (const [name, { packages, entry }] of Object.entries(FILES)) {
    const result = await esbuild.build({
      stdin: { contents: entry, resolveDir: at }, bundle: true, minify: true, format: 'esm', target: 'es2022',
      write: false, legalComments: 'inline', plugins: [withoutHtml], define: { __VERSION__: JSON.stringify(VERSIONS.katex) },
    });
    const content = Buffer.from(result.outputFiles[0].contents);
    written.set(name, content);
    manifest[name] = {
      packages: Object.fromEntries(packages.map((each) => [each, VERSIONS[each]])),
      sha256: createHash('sha256').update(content).digest('hex'),
    };
  }
  written.set('MANIFEST.json', Buffer.from(`${JSON.stringify(manifest, null, 2)}\n`));
  written.set('LICENSES', Buffer.from(licenses(at)));
  return written;
}

function install(wanted, at) {
  try {
    execFileSync('npm', ['install', '--ignore-scripts', '--no-audit', '--no-fund', ...wanted], { cwd: at, stdio: 'inherit' });
  } catch {
    fs.rmSync(at, { recursive: true });
    process.exit(3);
  }
}

function licenses(at) {
  return Object.keys(VERSIONS).sort().map((name) => {
    const text = fs.readFileSync(path.join(at, 'node_modules', name, 'LICENSE'), 'utf8');
    return `${name} ${VERSIONS[name]}\n\n${text.trim()}\n`;
  }).join(`\n${'-'.repeat(80)}\n\n`);
}

function check(written) {
  const differing = [...written].filter(([name, text]) => !fs.readFileSync(path.join(VENDOR, name)).equals(text));
  if (differing.length === 0) return;
  console.error(`${differing.map(([name]) => name).join(', ')}: not what the versions give; run tools/vendor_ui.mjs`);
  process.exitCode = 1;
}
