// Program original renders templates as confd does, with its own functions and store and
// given keys instead of a backend.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path"
	"strings"
	texttemplate "text/template"

	"github.com/kelseyhightower/confd/resource/template"
	"github.com/kelseyhightower/memkv"
)

type trial struct {
	Template, Prefix string
	Keys             map[string]string
}

func main() {
	var trials []trial
	if err := json.NewDecoder(os.Stdin).Decode(&trials); err != nil {
		panic(err)
	}
	var out []map[string]string
	for _, t := range trials {
		text, err := render(t)
		if err != nil {
			out = append(out, map[string]string{"error": err.Error()})
			continue
		}
		out = append(out, map[string]string{"text": text})
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		panic(err)
	}
}

// render does what createStageFile of confd does.
func render(t trial) (string, error) {
	store := memkv.New()
	for key, value := range t.Keys {
		store.Set(path.Join("/", strings.TrimPrefix("/"+key, t.Prefix)), value)
	}
	funcs := template.Functions()
	for name, fn := range store.FuncMap {
		funcs[name] = fn
	}
	tmpl, err := texttemplate.New("t").Funcs(funcs).Parse(t.Template)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = tmpl.Execute(&b, nil)
	return b.String(), err
}
