package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/view"
)

// TestCheckSchema_Bomb: two kilobytes whose parts refer to each other twice take
// no hour, on a host that votes as little as on the one that publishes.
func TestCheckSchema_Bomb(t *testing.T) {
	const levels = 40
	for _, word := range []string{"allOf", "anyOf", "oneOf"} {
		var defs []string
		for i := range levels {
			defs = append(defs, fmt.Sprintf(`"a%d":{%q:[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]}`, i, word, i+1, i+1))
		}
		defs = append(defs, fmt.Sprintf(`"a%d":{"minProperties":9}`, levels))
		schema := `{"$ref":"#/$defs/a0","$defs":{` + strings.Join(defs, ",") + `}}`
		began := time.Now()
		err := CheckSchema([]byte(schema), view.TreeOf("web", "/web", map[string]string{"a": "1"}))
		if !errors.Is(err, ErrSchemaBudget) {
			t.Errorf("%s: got %v after %s", word, err, time.Since(began))
		}
	}
}

func TestCheckSchema_BudgetIsEnough(t *testing.T) {
	keys := map[string]string{}
	for i := range 20000 {
		keys[fmt.Sprintf("host/%d", i)] = `{"port": 80, "tags": ["a", "b"]}`
	}
	schema := `{"$schema":"https://json-schema.org/draft/2020-12/schema","properties":{"host":{"additionalProperties":{"allOf":[{"required":["port"]},{"properties":{"tags":{"items":{"type":"string"}}}}]}}}}`
	if err := CheckSchema([]byte(schema), view.TreeOf("web", "/web", keys)); err != nil {
		t.Error(err)
	}
}

// TestCheckSchema_BudgetChecksSchemas: the budget does not replace the check of
// the schema itself.
func TestCheckSchema_BudgetChecksSchemas(t *testing.T) {
	for _, schema := range []string{`{"type": 5}`, `{"$schema":"https://json-schema.org/draft/2020-12/schema","required":"a"}`, `{"$schema":"http://json-schema.org/draft-07/schema#","items":5}`} {
		if err := CheckSchema([]byte(schema), view.TreeOf("web", "/web", map[string]string{"a": "1"})); err == nil {
			t.Errorf("%s: no error", schema)
		}
	}
}
