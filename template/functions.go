package template

import (
	"maps"
	"slices"
	"sync"
)

// function is one template function: a plain Go function, or one that is made
// for the state of each executor.
type function struct {
	fn    any
	make  func(*state) any
	allow string // what the allow setting must name; empty: nothing
	pure  bool   // it gives the same for the same arguments, and does nothing else
}

// impure are functions whose result is a matter of the time, of the network, or of
// places in memory, among groups that are pure otherwise.
var impure = []string{"ago", "spew_sdump", "spew_sprintf", "unixEpoch", "toDate", "mustToDate", "uuidv4", "getHostByName"}

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
		f := function{make: bounded(fn), pure: !slices.Contains(impure, name)}
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
		table[name] = function{make: bounded(fn), pure: !slices.Contains(impure, name)}
	}
	maps.Copy(table, viewFunctions())
	maps.Copy(table, outsideFunctions())
	return table
})
