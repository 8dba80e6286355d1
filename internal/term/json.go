package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v2"
)

// Formats are the values of --output.
var Formats = []string{"text", "wide", "json", "yaml", "ndjson"}

// IsJSON reports whether machines read the output: json, yaml or ndjson.
func (c *Console) IsJSON() bool {
	return c.Format == "json" || c.Format == "yaml" || c.Format == "ndjson"
}

// PrintJSON writes one object.
func (c *Console) PrintJSON(key string, v any) error {
	return c.PrintObject(map[string]any{key: v})
}

// PrintObject is PrintJSON with several keys.
func (c *Console) PrintObject(fields map[string]any) error {
	return c.document(fields, c.Format == "json")
}

// PrintResult writes an object for machines, and a text for people.
func (c *Console) PrintResult(key string, v any, format string, args ...any) error {
	if c.IsJSON() {
		return c.PrintJSON(key, v)
	}
	c.Printf(format, args...)
	return c.failed
}

// PrintRows writes a list for machines, and a table for people with a row of cells
// for each element.
func PrintRows[T any](c *Console, key string, list []T, header []string, cells func(T) []string) error {
	if c.IsJSON() {
		return PrintList(c, key, list)
	}
	t := &Table{Header: header}
	for _, e := range list {
		t.Add(cells(e)...)
	}
	return c.PrintTable(t)
}

// PrintList writes a list: with ndjson one line an element.
func PrintList[T any](c *Console, key string, list []T) error {
	if c.Format != "ndjson" {
		if list == nil {
			list = []T{}
		}
		return c.PrintJSON(key, list)
	}
	for _, e := range list {
		if err := c.Line(e); err != nil {
			return err
		}
	}
	return nil
}

// Line writes one JSON object as one line, for streams of events. With yaml each
// is a document.
func (c *Console) Line(v any) error { return c.document(v, false) }

func (c *Console) document(v any, indent bool) error {
	data, err := Document(v)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	switch {
	case c.Format == "yaml":
		if c.documents++; c.documents > 1 {
			out.WriteString("---\n")
		}
		if data, err = toYAML(data); err != nil {
			return err
		}
		out.Write(data)
	case indent:
		if err := json.Indent(&out, data, "", "  "); err != nil {
			return err
		}
		out.WriteByte('\n')
	default:
		out.Write(append(data, '\n'))
	}
	return c.write(c.Out, out.Bytes())
}

// Document is v as a JSON object that begins with the version of the format. What
// is no object becomes the field "item".
func Document(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	fields, object := bytes.CutPrefix(bytes.TrimSpace(escapeJSON(b.Bytes())), []byte("{"))
	switch {
	case !object:
		fields = append([]byte(`"item":`), append(fields, '}')...)
	case bytes.HasPrefix(fields, []byte(`"apiVersion":`)):
		return append([]byte("{"), fields...), nil
	}
	head := `{"apiVersion":"v1",`
	if len(fields) == 1 { // the closing brace alone
		head = `{"apiVersion":"v1"`
	}
	return append([]byte(head), fields...), nil
}

// escapeJSON writes what is not printable in JSON as \u and its number: the
// encoder leaves controls beyond ASCII, and those that turn the direction of text.
func escapeJSON(data []byte) []byte {
	hidden := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if !bytes.ContainsFunc(data, hidden) {
		return data
	}
	var b bytes.Buffer
	for _, r := range string(data) {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

// toYAML is a JSON document as YAML, with the fields in the same order. JSON is
// YAML, so that the one reads the other.
func toYAML(data []byte) ([]byte, error) {
	var fields yaml.MapSlice
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	return yaml.Marshal(fields)
}
