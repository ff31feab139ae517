// What the page uses of marked and DOMPurify.
export interface Token { type: string; raw: string; text?: string; lang?: string }

export class Marked {
  constructor(options: object);
  lexer(text: string): Token[];
  parse(text: string): string;
}

export const purify: {
  sanitize(markup: string, options: object): any;
  addHook(name: string, hook: (node: any) => void): void;
};
