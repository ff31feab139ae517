// What the page uses of Preact, its hooks, its signals and htm, which `vendor/preact.js` has in one file.
export interface VNode {}
export type Reference<T> = { current: T };
export interface Signal<T> { value: T; peek(): T }
export interface ReadonlySignal<T> { readonly value: T; peek(): T }

export function h(type: any, props: any, ...children: any[]): VNode;
export function html(strings: TemplateStringsArray, ...values: any[]): any;
export function render(node: any, parent: Element): void;
export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useMemo<T>(make: () => T, inputs: readonly unknown[]): T;
export function useRef<T = any>(initial: T): Reference<T extends null ? any : T>;
export function useState<T>(initial: T | (() => T)): [T extends null ? any : T, (next: any) => void];
export function signal<T>(value: T): Signal<T extends null ? any : T>;
export function computed<T>(compute: () => T): ReadonlySignal<T>;
export function effect(run: () => void | (() => void)): () => void;
export function batch<T>(run: () => T): T;
