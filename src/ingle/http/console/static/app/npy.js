// Rows of numbers as the server sends them: JSON, or one array in numpy's file format.
const HEAD = 10;
const TYPES = {
  "<f8": Float64Array, "<f4": Float32Array, "<i8": BigInt64Array, "<i4": Int32Array, "<i2": Int16Array,
  "|i1": Int8Array, "<u8": BigUint64Array, "<u4": Uint32Array, "<u2": Uint16Array, "|u1": Uint8Array,
};

/** Return the numbers of an answer, or null when it is not a row of numbers. */
export async function readNumbers(answer) {
  const type = answer.headers.get("content-type") || "";
  if (type.includes("json")) {
    const value = await answer.json();
    return Array.isArray(value) && value.length > 1 && value.every(Number.isFinite) ? value : null;
  }
  if (!type.includes("npy")) return null;
  return readNpy(await answer.arrayBuffer());
}

export function readNpy(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < HEAD || view.getUint32(0) !== 0x934e554d) return null;
  const size = view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, HEAD, size));
  const kind = TYPES[/'descr': '([^']+)'/.exec(header)?.[1]];
  const shape = /'shape': \((\d+),\)/.exec(header);
  if (!kind || !shape || Number(shape[1]) < 2) return null;
  const data = buffer.slice(HEAD + size);
  return Array.from(new kind(data, 0, Math.floor(data.byteLength / kind.BYTES_PER_ELEMENT)), Number);
}
