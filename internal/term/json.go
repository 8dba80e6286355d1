package term

import "encoding/json"

// IsJSON reports whether machines read the output.
func (c *Console) IsJSON() bool { return c.Format == "json" || c.Format == "ndjson" }

// PrintJSON writes one object, with the version of the format.
func (c *Console) PrintJSON(key string, v any) error {
	return c.PrintObject(map[string]any{key: v})
}

// PrintObject is PrintJSON with several keys. It adds the version to fields.
func (c *Console) PrintObject(fields map[string]any) error {
	enc := json.NewEncoder(c.Out)
	if c.Format == "json" {
		enc.SetIndent("", "  ")
	}
	fields["apiVersion"] = "v1"
	return enc.Encode(fields)
}

// PrintList writes a list: with ndjson one line an element.
func PrintList[T any](c *Console, key string, list []T) error {
	if c.Format != "ndjson" {
		if list == nil {
			list = []T{}
		}
		return c.PrintJSON(key, list)
	}
	enc := json.NewEncoder(c.Out)
	for _, e := range list {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// Line writes one JSON object as one line, for streams of events.
func (c *Console) Line(v any) error { return json.NewEncoder(c.Out).Encode(v) }
