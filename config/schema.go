package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/zkagent/zkagent/view"
)

// SchemaKey is the key of a tree's own JSON Schema. It is part of the tree, so that
// every host checks a version against the same schema.
const SchemaKey = ".schema.json"

// RolloutKey is the key of a tree that says how its next versions are rolled out, for the
// commands that publish them: a JSON object with the flags of "zkagent config publish".
const RolloutKey = ".rollout.json"

// ErrSchema is matched by errors about a tree that violates its schema.
var ErrSchema = errors.New("violates the schema")

// ErrSchemaBudget is matched by the error of a schema that takes too long. In a
// schema of a few hundred bytes, parts that refer to each other twice double the
// work with each level.
var ErrSchemaBudget = errors.New("the schema takes too much work")

// Bounds on the steps of one check. A host takes about a microsecond for a step.
const (
	maxSchema      = 1 << 20
	schemaSteps    = 200_000 // and
	schemaKeySteps = 100     // for each key
	maxSchemaTime  = 10 * time.Second
)

// schemaBudget counts the schemas that are applied to values. It is a vocabulary
// without keywords, since the library asks those at each step.
type schemaBudget struct {
	steps int
	limit int
	until time.Time
}

// Validate implements jsonschema.SchemaExt.
func (b *schemaBudget) Validate(*jsonschema.ValidatorContext, any) { b.step() }

func (b *schemaBudget) step() {
	if b.steps++; b.steps > b.limit || b.steps%4096 == 0 && time.Now().After(b.until) {
		panic(ErrSchemaBudget)
	}
}

// CheckSchema validates a tree against a JSON Schema (draft 2020-12 unless it says
// otherwise). If schema is nil, it uses the tree's own schema, and without that it
// checks nothing.
//
// It validates one object: a key a/b is the property b of the object a. A value
// that is valid JSON (a number, true, an object, ...) counts as JSON, any other
// value as a string. The keys .schema.json and .rollout.json are left out. References to other
// documents are refused.
func CheckSchema(schema []byte, t *view.Tree) (err error) {
	if schema == nil {
		own, ok := t.Get(SchemaKey)
		if !ok {
			return nil
		}
		schema = own.Value
	}
	budget := &schemaBudget{limit: schemaSteps + schemaKeySteps*t.Len(), until: time.Now().Add(maxSchemaTime)}
	defer func() {
		if p := recover(); p == ErrSchemaBudget { //nolint:errorlint // The value that step panics with.
			err = fmt.Errorf("schema: %w: more than %d steps or %s", ErrSchemaBudget, budget.limit, maxSchemaTime)
		} else if p != nil {
			panic(p)
		}
	}()
	compiled, err := compileSchema(schema, budget)
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	doc := map[string]any{}
	t.Walk("", func(key string, k view.Key) bool {
		if key != SchemaKey && key != RolloutKey {
			err = put(doc, key, k.Value)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if err := compiled.Validate(doc); err != nil {
		return &schemaError{err}
	}
	return nil
}

// schemaError lists the violations of a schema. It matches [ErrSchema].
type schemaError struct{ err error }

// Error implements error. The first line of the library's text names the schema,
// which has no name; the others are one violation each.
func (e *schemaError) Error() string {
	_, lines, ok := strings.Cut(e.err.Error(), "\n")
	if !ok {
		lines = e.err.Error()
	}
	return ErrSchema.Error() + ":\n" + lines
}

func (e *schemaError) Unwrap() []error { return []error{ErrSchema, e.err} }

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %s: other documents are not loaded", url)
}

func compileSchema(schema []byte, budget *schemaBudget) (*jsonschema.Schema, error) {
	if len(schema) > maxSchema {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrSchemaBudget, len(schema), maxSchema)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.RegisterVocabulary(&jsonschema.Vocabulary{
		URL: "zkagent:budget",
		Compile: func(*jsonschema.CompilerContext, map[string]any) (jsonschema.SchemaExt, error) {
			budget.step()
			return budget, nil
		},
	})
	c.AssertVocabs()
	const name = "zkagent:schema"
	if err = c.AddResource(name, doc); err != nil {
		return nil, err
	}
	return c.Compile(name)
}

func put(doc map[string]any, key string, value []byte) error {
	elems := strings.Split(key, "/")
	last := elems[len(elems)-1]
	for _, elem := range elems[:len(elems)-1] {
		next, ok := doc[elem].(map[string]any)
		if doc[elem] != nil && !ok {
			return fmt.Errorf("%w: key %q is below a key with a value", ErrSchema, key)
		}
		if !ok {
			next = map[string]any{}
			doc[elem] = next
		}
		doc = next
	}
	doc[last] = string(value)
	if v, err := jsonschema.UnmarshalJSON(bytes.NewReader(value)); err == nil {
		doc[last] = v
	}
	return nil
}
