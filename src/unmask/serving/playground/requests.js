/* From the form to a request, and from a request to the Python and the command line that make the same text. */
"use strict";

(() => {
  const BLANK = /\[MASK(?::([^\]]*))?\]/g;

  /* What the main button does with a text: fill its blanks, or continue it. */
  function intention(text) {
    const blanks = [...text.matchAll(BLANK)];
    return { path: blanks.length ? "/v1/fill" : "/v1/completions", blanks: blanks.length };
  }

  const number = (value) => (value === "" ? undefined : Number(value));

  /* The fields that every way of writing shares; an empty field leaves the choice to the model. */
  function options(form, model) {
    const own = { seed: number(form.seed) ?? 0, temperature: number(form.temperature), top_p: number(form.topP) };
    if (!model?.unmask.causal) {
      own.steps = number(form.steps);
      if (form.order) own.order = form.order;
      else own.sampler = form.sampler || model?.unmask.default_sampler;
    }
    return { ...own, ...constraint(form) };
  }

  function constraint({ constraintKind, constraintText }) {
    if (constraintKind === "regex") return { constraint: { match: constraintText } };
    if (constraintKind === "words") return { constraint: { with: constraintText.trim().split(/\s*,\s*/) } };
    if (constraintKind !== "schema") return {};
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: parseSchema(constraintText) } } };
  }

  function parseSchema(text) {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Error(`The JSON schema cannot be read (${error.message}); correct it.`);
    }
  }

  function writeRequest(form, model) {
    const { path } = intention(form.text);
    const own = path === "/v1/fill" ? { text: form.text } : { prompt: form.text, max_tokens: number(form.length) };
    return { path, body: { model: model.id, ...own, ...options(form, model) } };
  }

  function editRequest(form, model, spans) {
    return { path: "/v1/edit", body: { model: model.id, text: form.text, spans, ...options(form, model) } };
  }

  function rowRequest(form, model, row) {
    return { path: "/v1/fill", body: { model: model.id, tokens: [row], ...options(form, model) } };
  }

  // ---- code

  const LITERALS = { null: "None", true: "True", false: "False" };

  function python(value) {
    if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
    if (value && typeof value === "object") {
      return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`).join(", ")}}`;
    }
    return LITERALS[String(value)] && typeof value !== "string" ? LITERALS[String(value)] : JSON.stringify(value);
  }

  const shell = (value) => (/^[\w.,:/=-]+$/.test(value) ? `${value}` : `'${String(value).replaceAll("'", `'\\''`)}'`);
  const present = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined));

  function split({ model, text, prompt, tokens, spans, max_tokens, constraint, response_format, ...others }) {
    return { model, text, prompt, tokens, spans, constraint, schema: response_format?.json_schema.schema, others: present(others) };
  }

  /* The Python of a request; `length` is the number of tokens of its canvas, `mask` the id of the mask token. */
  function pythonOf({ path, body }, length, mask) {
    const { model, text, prompt, tokens, spans, constraint, schema, others } = split(body);
    const lines = ["import unmask"];
    const names = [constraint?.match !== undefined && "Regex", constraint?.with && "Words", schema && "JsonSchema"];
    const name = names.find(Boolean);
    if (name) lines.push(`from unmask.constraints import ${name}`);
    lines.push("", `lm = unmask.load(${python(model)})`);
    const values = Object.entries(others).map(([field, value]) => `${field}=${python(value)}`);
    const prefix = prompt ? `, prefix=${python(prompt)}` : "";
    if (name === "Words") values.push(`constraint=Words(${constraint.with.map(python).join(", ")})`);
    else if (name === "Regex") values.push(`constraint=Regex(${python(constraint.match)})`);
    else if (name) values.push(`constraint=JsonSchema(${python(schema)}${prefix})`);
    if (tokens) {
      lines.push(`row = [${tokens[0].map((id) => id ?? mask).join(", ")}]  # ${mask} is the mask token`);
      lines.push(`print(lm.fill_rows(${["[row]", ...values].join(", ")})[0].text)`);
    } else if (path === "/v1/edit") {
      const places = spans.map((span) => `(${span.join(", ")})`).join(", ");
      lines.push(`print(lm.edit(${[python(text), `spans=[${places}]`, ...values].join(", ")}))`);
    } else if (path === "/v1/fill") {
      lines.push(`print(lm.fill(${[python(text), ...values].join(", ")}))`);
    } else {
      lines.push(`print(lm.generate(${[`prompt=${python(prompt)}`, `length=${length}`, ...values].join(", ")})[0])`);
    }
    return lines.join("\n") + "\n";
  }

  /* The command line of a request, or why there is none. */
  function commandOf({ path, body }, length) {
    const { model, text, prompt, tokens, spans, constraint, schema, others } = split(body);
    if (tokens) return "# Token ids have no command; use the Python.\n";
    const words = Object.entries(others).flatMap(([name, value]) => [`--${name.replaceAll("_", "-")}`, value]);
    if (constraint?.match !== undefined) words.push("--match", constraint.match);
    if (constraint?.with) words.push(...constraint.with.flatMap((word) => ["--with", word]));
    if (schema) words.push("--json-schema", "schema.json");
    const verbs = {
      "/v1/edit": ["edit", model, text, ...(spans ?? []).flatMap((span) => ["--span", span.join("-")])],
      "/v1/fill": ["fill", model, text],
      "/v1/completions": ["sample", model, "--prompt", prompt, "--length", length],
    };
    const command = ["unmask", ...verbs[path], ...words].map(shell).join(" ") + "\n";
    return schema ? `cat > schema.json <<'END'\n${JSON.stringify(schema)}\nEND\n${command}` : command;
  }

  function curlOf({ path, body }, root) {
    const data = shell(JSON.stringify(body));
    return `curl ${root}${path} -H 'Content-Type: application/json' -d ${data}\n`;
  }

  Object.assign(unmask, { intention, writeRequest, editRequest, rowRequest, pythonOf, commandOf, curlOf });
})();
