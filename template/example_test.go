package template_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// A template renders a view: a config and the leader of an election here.
func ExampleParse() {
	page, err := template.Parse(template.Config{
		Name: "page", Source: `color = {{ key "site/color" }}{{ with leader "db" }}, db = {{ .ID }}{{ end }}`,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var data view.View
	data = data.With(view.TreeOf("site", "/config/site", map[string]string{"color": "green"}))
	data = data.With(&view.Leader{Name: "db", ID: "db-2"})
	text, err := page.Render(context.Background(), &data, nil)
	fmt.Println(string(text), err)
	_, err = template.Parse(template.Config{Name: "page", Source: "{{ colour }}"})
	var wrong *template.Error
	fmt.Println(errors.As(err, &wrong))
	// Output:
	// color = green, db = db-2 <nil>
	// true
}
