package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/command"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/template"
)

// An agent writes a file from a config in ZooKeeper. Ready is closed when the file is there.
func ExampleAgent() {
	server := memzk.New(memzk.Options{}) // an ensemble, in a real program
	defer server.Close()
	if err := server.Create("/config/site/color", []byte("blue")); err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	color := filepath.Join(dir, "color")
	a, err := agent.New(agent.Config{
		ID: "web-1", Host: "web-1.example.org", OnStop: "leave",
		ZooKeeper: session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial},
		Configs:   []config.Config{{Name: "site", Path: "/config/site", Layout: config.LayoutPlain}},
		Bundles: []apply.Config{{Name: "color", Templates: []apply.FileConfig{{
			Name: "color", Contents: `color = {{ key "site/color" }}`,
			Destination: func(*template.Each) (string, error) { return color, nil },
		}}}},
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-a.Ready()
	text, err := os.ReadFile(color)
	fmt.Println(string(text), err)
	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// color = blue <nil>
	// ended: <nil>
}

// A program that examines settings lists the znodes that they name.
func ExampleConfig() {
	settings := agent.Config{
		ID: "web-1", Host: "web-1.example.org", Log: agent.LogConfig{Level: "info", Format: "json"},
		Configs:   []config.Config{{Name: "site", Path: "/config/site"}},
		Groups:    []registry.GroupConfig{{Name: "api", Path: "/services/api"}},
		Elections: []election.Config{{Name: "jobs", Path: "/elections/jobs"}},
		Execs: []agent.ExecConfig{{
			Name: "web", OnChange: "restart", EnvFrom: map[string]string{"COLOR": "site/color"},
			Command: command.Command{Args: func(command.Vars) ([]string, error) { return []string{"/usr/bin/web"}, nil }},
		}},
	}
	show := func(p agent.Place) { fmt.Println(p.Kind, p.Name, p.Path) }
	for _, place := range settings.Places() {
		show(place)
	}
	// Output:
	// config site /config/site
	// group api /services/api
	// election jobs /elections/jobs
}
