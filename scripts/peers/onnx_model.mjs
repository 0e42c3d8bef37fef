// An ONNX model of one node, as the bytes of its protobuf: field numbers are those of onnx.proto.
const varint = (n) => {
  const bytes = [];
  for (let rest = BigInt(n); ; rest >>= 7n) {
    if (rest < 128n) return [...bytes, Number(rest)];
    bytes.push(Number(rest & 127n) | 128);
  }
};
const number = (field, n) => [...varint(field << 3), ...varint(n)];
const bytes = (field, content) => [...varint((field << 3) | 2), ...varint(content.length), ...content];
const text = (field, s) => bytes(field, [...Buffer.from(s)]);
const float = (field, x) => [...varint((field << 3) | 5), ...new Uint8Array(new Float32Array([x]).buffer)];

const kFloat = 1, kInt32 = 6;  // element types
// {float: x}, or an integer
const attribute = (name, value) =>
  typeof value === "number"
    ? [...text(1, name), ...number(3, value), ...number(20, 2)]
    : [...text(1, name), ...float(2, value.float), ...number(20, 1)];
const dimension = (d) => (typeof d === "string" ? text(2, d) : number(1, d));
const value = ({ name, type, shape }) => [
  ...text(1, name),
  ...bytes(2, bytes(1, [...number(1, type), ...bytes(2, shape.flatMap((d) => bytes(1, dimension(d))))])),
];

// inputs, outputs: [{name, type, shape}]
export function oneNodeModel({ op, domain, opset, attributes, inputs, outputs }) {
  const node = [
    ...inputs.flatMap(({ name }) => text(1, name)),
    ...outputs.flatMap(({ name }) => text(2, name)),
    ...text(4, op),
    ...Object.entries(attributes).flatMap(([name, x]) => bytes(5, attribute(name, x))),
    ...text(7, domain),
  ];
  const graph = [
    ...bytes(1, node),
    ...text(2, "peer"),
    ...inputs.flatMap((x) => bytes(11, value(x))),
    ...outputs.flatMap((x) => bytes(12, value(x))),
  ];
  const opsets = [["", opset], ["com.microsoft", 1]].flatMap(([d, v]) => bytes(8, [...text(1, d), ...number(2, v)]));
  return Uint8Array.from([...number(1, 10), ...bytes(7, graph), ...opsets]);
}

export { kFloat, kInt32 };
