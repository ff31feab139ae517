// What the page uses of KaTeX.
export const katex: { renderToString(tex: string, options: object): string };
