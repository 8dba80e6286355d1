package template

import (
	"maps"
	"sync"
)

// function is one template function: a plain Go function, or one that is made
// for the state of each executor.
type function struct {
	fn    any
	make  func(*state) any
	allow string // what the allow setting must name; empty: nothing
}

func (f function) bind(st *state) any {
	if f.make != nil {
		return f.make(st)
	}
	return f.fn
}

// functionTable returns every function by name. It is made once.
var functionTable = sync.OnceValue(func() map[string]function {
	table := map[string]function{}
	for name, fn := range sprigFunctions() {
		f := function{make: bounded(fn)}
		table["sprig_"+name] = f
		if !builtins[name] {
			table[name] = f
		}
	}
	own := map[string]any{}
	for _, group := range []map[string]any{
		textFunctions(), parseFunctions(), encodeFunctions(), mathFunctions(), mapFunctions(), listFunctions(), quoteFunctions(),
	} {
		maps.Copy(own, group)
	}
	for name, fn := range own {
		table[name] = function{make: bounded(fn)}
	}
	maps.Copy(table, viewFunctions())
	maps.Copy(table, outsideFunctions())
	return table
})
