package template

import (
	_ "embed"

	"github.com/zkagent/zkagent/view"
)

// exampleFixture is the view of the examples in the catalog.
//
//go:embed example.yaml
var exampleFixture []byte

// viewOfExamples returns the view that the examples of [Functions] use.
func viewOfExamples() view.View {
	v, err := LoadFixture(exampleFixture)
	if err != nil {
		panic(err) // The fixture is a part of the program.
	}
	return v
}
