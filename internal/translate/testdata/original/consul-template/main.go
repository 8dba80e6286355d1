// Program original renders templates as consul-template does, with its own library and
// given data instead of a Consul.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/consul-template/config"
	dep "github.com/hashicorp/consul-template/dependency"
	"github.com/hashicorp/consul-template/template"
)

type member struct {
	ID, Node, Host string
	Port           int
	Tags           []string
	Meta           map[string]string
}

type trial struct {
	Template string
	Keys     map[string]string
	Services map[string][]member
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

func render(t trial) (string, error) {
	tmpl, err := template.NewTemplate(&template.NewTemplateInput{Contents: t.Template})
	if err != nil {
		return "", err
	}
	brain, conf := template.NewBrain(), config.DefaultConfig()
	conf.Finalize()
	for range 20 {
		res, err := tmpl.Execute(&template.ExecuteInput{Brain: brain, Config: conf})
		if err != nil {
			return "", err
		}
		if res.Missing.Len() == 0 {
			return string(res.Output), nil
		}
		for _, d := range res.Missing.List() {
			data, ok := t.data(d)
			if !ok {
				return "", fmt.Errorf("waits for %s", d)
			}
			brain.Remember(d, data)
		}
	}
	return "", fmt.Errorf("still waits")
}

// data is what Consul would answer.
func (t trial) data(d dep.Dependency) (any, bool) {
	what, name, _ := strings.Cut(strings.TrimSuffix(d.String(), ")"), "(")
	switch what {
	case "kv.block":
		value, ok := t.Keys[name]
		return value, ok
	case "kv.get":
		if value, ok := t.Keys[name]; ok {
			return value, true
		}
		return nil, true
	case "kv.list":
		pairs := []*dep.KeyPair{}
		for key, value := range t.Keys {
			if strings.HasPrefix(key, name) {
				pairs = append(pairs, &dep.KeyPair{Path: key, Key: strings.TrimLeft(strings.TrimPrefix(key, name), "/"), Value: value})
			}
		}
		slices.SortFunc(pairs, func(a, b *dep.KeyPair) int { return strings.Compare(a.Path, b.Path) })
		return pairs, true
	case "health.service":
		name, _, _ = strings.Cut(name, "|")
		tag, rest, tagged := strings.Cut(name, ".")
		if tagged {
			name = rest
		}
		list := []*dep.HealthService{}
		for _, m := range t.Services[name] {
			if tagged && !slices.Contains(m.Tags, tag) {
				continue
			}
			list = append(list, &dep.HealthService{
				Node: m.Node, ID: m.ID, Name: name, Address: m.Host, NodeAddress: m.Host, Port: m.Port, Tags: m.Tags, Status: "passing",
				ServiceMeta: m.Meta, NodeMeta: m.Meta,
			})
		}
		slices.SortStableFunc(list, func(a, b *dep.HealthService) int { return strings.Compare(a.Node+"\x00"+a.ID, b.Node+"\x00"+b.ID) })
		return list, true
	case "catalog.services":
		list := []*dep.CatalogSnippet{}
		for name, members := range t.Services {
			s := &dep.CatalogSnippet{Name: name}
			for _, m := range members {
				s.Tags = append(s.Tags, m.Tags...)
			}
			slices.Sort(s.Tags)
			s.Tags = slices.Compact(s.Tags)
			list = append(list, s)
		}
		slices.SortFunc(list, func(a, b *dep.CatalogSnippet) int { return strings.Compare(a.Name, b.Name) })
		return list, true
	}
	return nil, false
}
