package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/session"
)

// Directories beside the settings.
const (
	seedDir   = "seed"   // in ZooKeeper before the agent starts
	changeDir = "change" // what the story publishes
)

// seed writes the files of the named directories beside the settings as znodes
// of the same paths. What lies below a config tree is published as one change,
// as "zkagent config publish" does.
func (d *run) seed(ctx context.Context, cfg *agent.Config, name string) error {
	zk := cfg.ZooKeeper
	s, err := session.Dial(ctx, zk)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if zk.Chroot != "" && !d.server.Exists(zk.Chroot) {
		if err := d.server.Create(zk.Chroot, nil); err != nil {
			return err
		}
	}
	for _, p := range d.paths {
		files, err := seedFiles(p, name)
		if err != nil {
			return err
		}
		if err := plant(ctx, s, cfg, files, name); err != nil {
			return fmt.Errorf("fill the server from %s of %s: %w", name, p, err)
		}
	}
	return nil
}

// seedFiles reads the directory beside one settings path; there may be none.
func seedFiles(path, name string) (map[string][]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		path = filepath.Dir(path)
	}
	files, err := config.ReadDir(filepath.Join(path, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return files, err
}

// plant publishes what belongs to config trees, and creates the rest.
func plant(ctx context.Context, s *session.Session, cfg *agent.Config, files map[string][]byte, why string) error {
	trees := map[string]map[string][]byte{}
	layouts := map[string]string{}
	for key, data := range files {
		path := "/" + key
		root := ""
		for _, c := range cfg.Configs {
			if strings.HasPrefix(path, c.Path+"/") && len(c.Path) > len(root) {
				root, layouts[c.Path] = c.Path, c.Layout
			}
		}
		if root == "" || layouts[root] == "plain" {
			if err := put(ctx, s, path, data); err != nil {
				return err
			}
			continue
		}
		if trees[root] == nil {
			trees[root] = map[string][]byte{}
		}
		trees[root][strings.TrimPrefix(path, root+"/")] = data
	}
	for root, keys := range trees {
		layout := layouts[root]
		if layout == "auto" {
			layout = ""
		}
		_, err := fleet.Publish(ctx, s, fleet.PublishConfig{Path: root, Layout: layout, Keys: keys, Message: why, Author: "zkagent dev", Force: true})
		if err != nil {
			return err
		}
	}
	return nil
}

func put(ctx context.Context, s *session.Session, path string, data []byte) error {
	if err := s.CreateParents(ctx, path); err != nil {
		return err
	}
	_, _, err := s.Create(ctx, path, data, session.Persistent)
	if errors.Is(err, session.ErrNodeExists) {
		_, err = s.Set(ctx, path, data, -1)
	}
	return err
}
