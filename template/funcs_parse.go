package template

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // The function md5sum is for cache keys, not for security.
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v2"
)

// parseFunctions read and write numbers and structured texts. An empty text
// is the zero value.
var parseFunctions = map[string]any{
	"parseBool": func(s string) (bool, error) { return number("a bool", s, strconv.ParseBool) },
	"parseInt":  parseInt,
	"parseUint": func(s string) (uint64, error) {
		return number("an unsigned integer", s, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
	},
	"parseFloat": func(s string) (float64, error) {
		return number("a number", s, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	},
	"parseJSON":             parseJSON,
	"decodeJSON":            decodeJSON,
	"parseYAML":             parseYAML,
	"toJSON":                toJSON,
	"toJSONPretty":          toJSONPretty,
	"toUnescapedJSON":       unescapedJSON(""),
	"toUnescapedJSONPretty": unescapedJSON("  "),
	"toYAML":                toYAML,
	"toTOML":                toTOML,
}

// number parses with fn; its error does not show the text.
func number[T any](kind, s string, fn func(string) (T, error)) (T, error) {
	var zero T
	if s == "" {
		return zero, nil
	}
	v, err := fn(s)
	if errors.Is(err, strconv.ErrRange) {
		return zero, &inputError{s, "value is out of the range of " + kind}
	}
	if err != nil {
		return zero, &inputError{s, "value is not " + kind}
	}
	return v, nil
}

func parseInt(s string) (int64, error) {
	return number("an integer", s, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
}

func parseJSON(s string) (any, error) {
	if s == "" {
		return map[string]any{}, nil
	}
	return unmarshalJSON(s)
}

func unmarshalJSON(s string) (any, error) {
	if err := CheckNesting(s); err != nil {
		return nil, err
	}
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		return nil, &inputError{s, "value is not JSON" + jsonPlace(s, err)}
	}
	return v, weigh(v)
}

// decodeJSON is parseJSON with integers: a number without a fraction or exponent
// that fits into 64 bits is one.
func decodeJSON(s string) (any, error) {
	v, err := parseJSON(s)
	if err != nil || s == "" {
		return v, err
	}
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	_ = dec.Decode(&v) // parseJSON has read it.
	return integers(v), nil
}

func integers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64() // parseJSON has read it.
		return f
	case map[string]any:
		for k, e := range v {
			v[k] = integers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = integers(e)
		}
	}
	return v
}

// jsonPlace says where JSON is wrong, without showing it.
func jsonPlace(s string, err error) string {
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return ""
	}
	p := placeOf(s, int(syntax.Offset)-1)
	if syntax.Offset >= int64(len(s)) {
		return ": it ends too early"
	}
	return fmt.Sprintf(": line %d, column %d of the value", p.line, p.column)
}

func parseYAML(s string) (any, error) {
	if s == "" {
		return map[string]any{}, nil
	}
	if err := CheckNesting(s); err != nil {
		return nil, err
	}
	var v any
	if err := yaml.Unmarshal([]byte(s), &v); err != nil {
		return nil, &inputError{s, "value is not YAML" + yamlPlace(err)}
	}
	return v, weigh(v)
}

// yamlPlace keeps "line 3" of an error of the YAML library.
func yamlPlace(err error) string {
	_, rest, ok := strings.Cut(err.Error(), "line ")
	if !ok {
		return ""
	}
	line, _, _ := strings.Cut(rest, ":")
	if n, err := strconv.Atoi(line); err == nil {
		return fmt.Sprintf(": line %d of the value", n)
	}
	return ""
}

func toJSON(v any) (string, error) {
	b, err := json.Marshal(textKeys(v))
	return string(bytes.TrimSpace(b)), err
}

func toJSONPretty(v any) (string, error) {
	if err := checkPretty(v); err != nil {
		return "", err
	}
	b, err := json.MarshalIndent(textKeys(v), "", "  ")
	return string(bytes.TrimSpace(b)), err
}

// unescapedJSON returns a function that writes JSON without escapes for HTML.
func unescapedJSON(indent string) func(any) (string, error) {
	return func(v any) (string, error) {
		if err := checkPretty(v); err != nil {
			return "", err
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", indent)
		err := enc.Encode(textKeys(v))
		return strings.TrimRight(b.String(), "\r\n"), err
	}
}

func toYAML(v any) (string, error) {
	b, err := yaml.Marshal(v)
	return string(bytes.TrimSpace(b)), err
}

func toTOML(v any) (string, error) {
	var b bytes.Buffer
	err := toml.NewEncoder(&b).Encode(v)
	return string(bytes.TrimSpace(b.Bytes())), err
}

var encodeFunctions = map[string]any{
	"base64Encode":    func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"base64Decode":    func(s string) (string, error) { return decode64(base64.StdEncoding, s) },
	"base64URLEncode": func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) },
	"base64URLDecode": func(s string) (string, error) { return decode64(base64.URLEncoding, s) },
	"sha256Hex":       sha256Hex,
	"md5sum":          md5sum,
	"hmacSHA256Hex":   hmacSHA256Hex,
}

func decode64(enc *base64.Encoding, s string) (string, error) {
	b, err := enc.DecodeString(s)
	if err != nil {
		return "", &inputError{s, "value is not base64"}
	}
	return string(b), nil
}

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// md5sum is for cache keys and old file formats, not for security.
func md5sum(s string) string {
	sum := md5.Sum([]byte(s)) //nolint:gosec // See above.
	return hex.EncodeToString(sum[:])
}

func hmacSHA256Hex(message, key string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(message))
	return hex.EncodeToString(h.Sum(nil))
}
