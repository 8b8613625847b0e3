// The view library: components, hooks, templates without a build step, and signals.
import { h } from "preact";
import htm from "htm";
export { h, render, Fragment, Component, createContext } from "preact";
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext } from "preact/hooks";
export { signal, computed, effect, batch, useSignal, useComputed, useSignalEffect } from "@preact/signals";
export const html = htm.bind(h);
