package settings

import (
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// What "zkagent import" could not translate is marked: by a comment in the
// settings, and by an action that fails in a template. Neither may stay.

var (
	leftoverComment = regexp.MustCompile(`^(?:#|//)\s*import:\s*(.*)`)
	leftoverAction  = regexp.MustCompile(`\bfail[ \t]+"import: `)
)

// leftoverComments reports the marks in a settings file.
func (s *Settings) leftoverComments(name string, data []byte) {
	tokens, _ := hclsyntax.LexConfig(data, name, hcl.InitialPos) // The parser reports errors.
	for _, t := range tokens {
		if m := leftoverComment.FindSubmatch(t.Bytes); t.Type == hclsyntax.TokenComment && m != nil {
			s.errorAt(t.Range, "Left over from import", "%s Do what it says, then delete the comment.", sentence(string(m[1])))
		}
	}
}

// leftoverActions reports the marks in a template.
func (s *Settings) leftoverActions(name, text string, o origin) {
	for _, m := range leftoverAction.FindAllStringIndex(text, -1) {
		line := 1 + strings.Count(text[:m[0]], "\n")
		column := m[0] - strings.LastIndexByte(text[:m[0]], '\n')
		s.errorAt(o.place(line, column), "Template "+name, "Left over from import: the action could not be translated; write it in another way.")
	}
}
