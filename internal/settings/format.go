package settings

import (
	"bytes"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Format returns the canonical form of a settings file: indentation, spaces
// around "=", and aligned arguments. What does not parse is not formatted.
func Format(name string, data []byte) ([]byte, error) {
	if _, diags := hclsyntax.ParseConfig(data, name, hcl.InitialPos); diags.HasErrors() {
		return nil, diags
	}
	out := hclwrite.Format(data)
	out = bytes.TrimRight(out, " \t\r\n")
	if len(out) > 0 {
		out = append(out, '\n')
	}
	return out, nil
}
