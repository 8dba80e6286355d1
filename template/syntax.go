package template

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v2"
)

// syntaxes are the parsers of rendered bytes that this package brings.
var syntaxes = map[string]func([]byte) error{
	"json": checkJSON,
	"yaml": checkYAML,
	"toml": func(b []byte) error {
		if err := checkKeys(string(b)); err != nil {
			return err
		}
		return toml.Unmarshal(b, &map[string]any{})
	},
	"xml": checkXML,
	"ini": checkINI,
}

// Syntaxes returns the names of the syntaxes that this package can check.
func Syntaxes() []string { return slices.Sorted(maps.Keys(syntaxes)) }

func guarded(check func([]byte) error) func([]byte) error {
	return func(b []byte) error {
		if len(b) > maxChecked {
			return fmt.Errorf("%d bytes are %w: a syntax is checked up to %d", len(b), ErrTooLarge, maxChecked)
		}
		if err := CheckNesting(string(b)); err != nil {
			return err
		}
		return check(b)
	}
}

func syntaxCheck(name string, more map[string]func([]byte) error) (func([]byte) error, error) {
	if name == "" || name == "none" {
		return nil, nil
	}
	if check, ok := more[name]; ok {
		return guarded(check), nil
	}
	if check, ok := syntaxes[name]; ok {
		return guarded(check), nil
	}
	names := slices.Sorted(maps.Keys(more))
	names = append(append(names, Syntaxes()...), "none")
	return nil, fmt.Errorf("syntax %q does not exist%s", name, meant(name, names))
}

func checkJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	var v json.RawMessage // The values are not needed.
	if err := dec.Decode(&v); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			p := placeOf(string(b), int(syntax.Offset)-1)
			return fmt.Errorf("line %d, column %d: %w", p.line, p.column, err)
		}
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		p := placeOf(string(b), int(dec.InputOffset()))
		return fmt.Errorf("line %d, column %d: there is more after the value", p.line, p.column)
	}
	return nil
}

func checkYAML(b []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	for {
		var v any
		switch err := dec.Decode(&v); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func checkXML(b []byte) error {
	dec := xml.NewDecoder(bytes.NewReader(b))
	depth, elements := 0, 0
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			if depth == 0 {
				elements++
			}
			depth++
		case xml.EndElement:
			depth--
		case xml.CharData:
			if depth == 0 && len(bytes.TrimSpace(tok)) > 0 {
				line, _ := dec.InputPos()
				return fmt.Errorf("line %d: text outside of the element", line)
			}
		}
	}
	if elements != 1 {
		return fmt.Errorf("%d elements at the top, not one", elements)
	}
	return nil
}

// checkINI wants sections, "name = value" or "name: value", comments, and
// lines that continue a value because they are indented.
func checkINI(b []byte) error {
	value := false
	for i, line := range strings.Split(string(b), "\n") {
		text := strings.TrimSpace(line)
		switch {
		case text == "":
			value = false
		case strings.ContainsAny(text[:1], ";#"):
		case value && (line[0] == ' ' || line[0] == '\t'):
		case text[0] == '[':
			section, _, closed := strings.Cut(text[1:], "]")
			if !closed || strings.TrimSpace(section) == "" {
				return fmt.Errorf("line %d: a section is [name]", i+1)
			}
			value = false
		default:
			if at := strings.IndexAny(text, "=:"); at <= 0 {
				return fmt.Errorf("line %d: neither a section nor name = value", i+1)
			}
			value = true
		}
	}
	return nil
}
