package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/user"
	"slices"

	"github.com/hashicorp/go-multierror"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// Errors of publishing that callers branch on.
var (
	// ErrUnfinished says that a flat tree has keys and no ready: a writer is at
	// work, or died before it finished.
	ErrUnfinished = errors.New("an earlier publish was not finished")
	// ErrConflict says that the tree in use is not the expected one.
	ErrConflict = errors.New("another version is in use")
	// ErrFrozen says that the config is frozen.
	ErrFrozen = errors.New("config is frozen")
	// ErrUnchanged says that there is nothing to publish.
	ErrUnchanged = errors.New("nothing changed")
)

// PublishConfig describes one publish. Keys is the whole tree: a key that is
// not in it is removed.
type PublishConfig struct {
	Path string // root znode
	// Layout is auto (that of the tree in use, versioned for a new one), flat
	// or versioned.
	Layout string
	Keys   map[string][]byte
	// Schema is a JSON Schema that the tree must satisfy, see [CheckSchema]. nil:
	// the schema in the tree's key [SchemaKey], if any.
	Schema []byte

	Message string // why
	Author  string // who; default: the user
	Host    string // where; default: the host name

	// Check, if not nil, is the generation that must be in use: the version of
	// a versioned tree, the czxid of a flat one's ready, 0 for no tree.
	Check *int64
	// Force allows to exceed [MaxRatio], to store values over [MaxValue] in a
	// versioned tree, and to replace a damaged tree ([ErrDamaged]).
	Force bool
	// Finish allows to overwrite an unfinished publish of a flat tree.
	Finish bool
	// Emergency closes an open rollout in the same transaction. It publishes even
	// unchanged keys, because hosts of the rollout may use another version than the
	// one in use.
	Emergency bool
	// Dry prepares a version for a dry run, even while the tree is frozen. Garbage
	// collection does not keep such a version.
	Dry bool
	// NoDelta keeps the difference to the previous version out of ready and of the
	// calls of rollouts. Readers then read the contents from the objects.
	NoDelta bool

	Logger *slog.Logger // nil: discard

	// step, if not nil, is called before each write with the name of the step.
	// Tests end the publisher there.
	step func(name string) error
	base *trees.State // the tree that an edit started from; nil: no edit
}

// Result describes the result of a publish.
type Result struct {
	Layout string `json:"layout"`
	// Generation is the generation in use now, or the number of a prepared version.
	// Use it as the next Check.
	Generation int64 `json:"generation"`
	// Version and Previous are the versions of a versioned tree.
	Version  int64  `json:"version,omitempty"`
	Previous int64  `json:"previous,omitempty"`
	Digest   string `json:"digest,omitempty"`
	Count    int    `json:"count"` // keys
	Size     int64  `json:"size"`  // bytes of all values
	// Unchanged says that the tree in use was the same already. Nothing was
	// written.
	Unchanged bool            `json:"unchanged"`
	Changes   []config.Change `json:"changes"`
	// Delta is the difference to the version in use, for a rollout's call. It is
	// nil when it is too large, or when not all readers of the call may read the
	// contents.
	Delta *trees.Delta `json:"-"`
}

// ConflictError says that the generation in use is not the expected one. It matches
// [ErrConflict].
type ConflictError struct {
	Path       string
	Want, Have int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("config %s: version %d was expected, %d is in use", e.Path, e.Want, e.Have)
}

// Is makes the error match ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Publish makes keys the tree in use. It waits for the publishers' lock. After an
// error the old tree is still in use, with one exception: a flat tree that does not
// fit into one request may be left without ready. Then the error matches
// [ErrUnfinished] and says how to finish.
func Publish(ctx context.Context, s *session.Session, cfg PublishConfig) (Result, error) {
	return publish(ctx, s, cfg, true)
}

// Prepare writes keys as a version and does not put it into use. A rollout does
// that later by setting ready. Prepare rejects a frozen config, because the rollout
// would fail.
func Prepare(ctx context.Context, s *session.Session, cfg PublishConfig) (Result, error) {
	if cfg.Layout == config.LayoutFlat {
		return Result{}, trees.NoVersions(cfg.Path)
	}
	return publish(ctx, s, cfg, false)
}

func publish(ctx context.Context, s *session.Session, cfg PublishConfig, flip bool) (Result, error) {
	return alone(ctx, s, cfg, "publish", func(ctx context.Context, p *publisher) (Result, error) { return p.run(ctx, flip) })
}

func alone(ctx context.Context, s *session.Session, cfg PublishConfig, what string, do func(context.Context, *publisher) (Result, error)) (Result, error) {
	if err := cfg.fill(); err != nil {
		return Result{}, err
	}
	var res Result
	err := withLock(ctx, s, cfg.Path, cfg.who(), cfg.Logger, func(ctx context.Context, guard session.Op) error {
		var err error
		res, err = do(ctx, &publisher{s: s, cfg: &cfg, guard: guard})
		return err
	})
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", what, err)
	}
	return res, nil
}

// change is alone for a tree that must exist. It publishes no keys of cfg.
func change(ctx context.Context, s *session.Session, cfg PublishConfig, what string, do func(context.Context, *publisher) (Result, error)) (Result, error) {
	cfg.Keys = nil
	if err := mustHaveConfig(ctx, s, cfg.Path); err != nil {
		return Result{}, err
	}
	return alone(ctx, s, cfg, what, do)
}

func (c *PublishConfig) fill() error {
	switch c.Layout {
	case "":
		c.Layout = config.LayoutAuto
	case config.LayoutAuto, config.LayoutFlat, config.LayoutVersioned:
	default:
		return fmt.Errorf("config %s: layout %q cannot be published", c.Path, c.Layout)
	}
	if c.Author == "" {
		if u, err := user.Current(); err == nil {
			c.Author = u.Username
		}
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname()
	}
	if len(c.Message) > maxMessage {
		return fmt.Errorf("config %s: message has %d bytes, at most %d are allowed: %w", c.Path, len(c.Message), maxMessage, config.ErrBounds)
	}
	var errs *multierror.Error
	if len(c.Keys) > config.MaxKeys {
		errs = multierror.Append(errs, fmt.Errorf("%d keys, at most %d are allowed: %w", len(c.Keys), config.MaxKeys, config.ErrBounds))
	}
	limit := config.MaxValue
	if c.Force && c.Layout != config.LayoutFlat {
		limit = trees.MaxForcedValue
	}
	for _, key := range slices.Sorted(maps.Keys(c.Keys)) {
		if err := config.ValidateKey(key); err != nil {
			errs = multierror.Append(errs, err)
		}
		if n := len(c.Keys[key]); n > limit {
			errs = multierror.Append(errs, fmt.Errorf("key %q has %d bytes, at most %d are allowed: %w", key, n, limit, config.ErrBounds))
		}
	}
	if err := trees.AllErrors(errs); err != nil {
		return fmt.Errorf("config %s: %w", c.Path, err)
	}
	return nil
}

// who returns the text for the lock's znode.
func (c *PublishConfig) who() string { return c.Author + "@" + c.Host }

func (c *PublishConfig) at(step string) error {
	if c.step == nil {
		return nil
	}
	return c.step(step)
}

// publisher is one publish under the lock.
type publisher struct {
	s     *session.Session
	cfg   *PublishConfig
	guard session.Op

	steady *trees.State // a flat tree whose keys must not have changed at the flip; nil: none
}

func (p *publisher) run(ctx context.Context, flip bool) (Result, error) {
	st, err := p.begin(ctx, flip)
	if err != nil {
		return Result{}, err
	}
	layout, err := p.cfg.layoutFor(st)
	if err != nil {
		return Result{}, err
	}
	if err := p.cfg.check(st); err != nil {
		return Result{}, err
	}
	switch {
	case layout == config.LayoutVersioned:
		m, objects := buildVersion(p.cfg.Keys)
		return p.put(ctx, st, m, objects, changesOf(st, view.KeysOf(p.cfg.Keys)), flip)
	case !flip:
		return Result{}, trees.NoVersions(p.cfg.Path)
	}
	return p.flat(ctx, st)
}

// begin reads the tree. It refuses what the generation in use, a freeze or an open
// rollout would refuse later, before anything is written.
func (p *publisher) begin(ctx context.Context, flip bool) (*trees.State, error) {
	st, err := trees.LookState(ctx, p.s, p.cfg.Path)
	if err != nil {
		return nil, err
	}
	if err := p.cfg.checkGeneration(st); err != nil {
		return nil, err
	}
	switch {
	case flip && !p.cfg.Emergency:
		err = CheckPublish(ctx, p.s, p.cfg.Path, false)
	case flip || !p.cfg.Dry:
		err = checkFreeze(ctx, p.s, p.cfg.Path)
	}
	return st, err
}

// checkGeneration compares the tree in use with the expected one.
func (c *PublishConfig) checkGeneration(st *trees.State) error {
	if c.Check != nil && *c.Check != st.Generation() {
		return &ConflictError{Path: c.Path, Want: *c.Check, Have: st.Generation()}
	}
	return nil
}

// layoutFor returns the layout to write the tree in.
func (c *PublishConfig) layoutFor(st *trees.State) (string, error) {
	unfinished := !st.Exists && st.Keys().Len() > 0
	switch {
	case st.Exists && c.Layout != config.LayoutAuto && c.Layout != st.Layout:
		return "", fmt.Errorf("config %s is %s, not %s; it can be converted", c.Path, st.Layout, c.Layout)
	case st.Exists:
		return st.Layout, nil
	case unfinished && !c.Finish:
		return "", unfinishedError(c.Path)
	case unfinished && c.Layout == config.LayoutVersioned:
		return "", fmt.Errorf("config %s holds keys of a flat tree: %w", c.Path, ErrUnfinished)
	case unfinished || c.Layout == config.LayoutFlat:
		return config.LayoutFlat, nil
	}
	return config.LayoutVersioned, nil
}

// changesOf lists what keys would change in the tree in use.
func changesOf(st *trees.State, keys *view.Keys) []config.Change {
	return config.Diff(view.NewTree(view.Tree{}, st.Keys()), view.NewTree(view.Tree{}, keys))
}

// unfinishedError says how to continue.
func unfinishedError(root string) error {
	return fmt.Errorf("config %s: %w: there are keys and no ready, so another writer is at work or died half-way; "+
		"readers keep the tree from before. To finish, publish the whole tree again, or declare the present keys complete", root, ErrUnfinished)
}

// check looks for reasons to refuse the keys for the tree in use.
func (c *PublishConfig) check(st *trees.State) error {
	if c.base != nil && len(c.base.ChangedRows(st)) > 0 {
		return c.otherTool(nil)
	}
	err := error(nil)
	if !c.Force {
		err = st.Damaged
	}
	if err == nil && st.Exists && !c.Force {
		err = checkRatio(st.Keys(), c.Keys)
	}
	if err == nil {
		err = config.CheckSchema(c.Schema, view.NewTree(view.Tree{}, view.KeysOf(c.Keys)))
	}
	if err != nil {
		return fmt.Errorf("config %s: %w", c.Path, err)
	}
	return nil
}

// otherTool is the error of a publish that a tool without the publishers' lock spoiled.
func (c *PublishConfig) otherTool(err error) error {
	if err == nil {
		return fmt.Errorf("config %s: another tool changed a key at the same time: %w", c.Path, ErrConflict)
	}
	return fmt.Errorf("config %s: another tool changed a key at the same time: %w: %w", c.Path, ErrConflict, err)
}

// Finish completes an unfinished publish of a flat tree with the keys that are
// there: it creates ready. The result describes the tree in use now.
func Finish(ctx context.Context, s *session.Session, cfg PublishConfig) (Result, error) {
	return change(ctx, s, cfg, "finish", func(ctx context.Context, p *publisher) (Result, error) {
		st, err := trees.ReadState(ctx, s, cfg.Path)
		if err != nil {
			return Result{}, err
		}
		if st.Exists || st.Keys().Len() == 0 {
			return Result{}, fmt.Errorf("config %s: there is nothing to finish: %w", cfg.Path, ErrUnchanged)
		}
		_, err = s.Multi(ctx, append(p.unlessFrozen(), session.CreateOp(trees.ReadyPath(cfg.Path), nil, session.Persistent))...)
		if err != nil && !errors.Is(err, session.ErrUnknown) {
			return Result{}, flipError(ctx, s, cfg.Path, err)
		}
		if st, err = trees.ReadState(ctx, s, cfg.Path); err != nil {
			return Result{}, err
		}
		if !st.Exists {
			return Result{}, unfinishedError(cfg.Path)
		}
		return Result{Layout: config.LayoutFlat, Generation: st.Generation(), Count: st.Keys().Len(), Changes: []config.Change{}}, nil
	})
}

// unlessFrozen begins a multi that needs the lock and fails while the config is frozen.
func (p *publisher) unlessFrozen() []session.Op {
	return append([]session.Op{p.guard}, absent(trees.FreezePath(p.cfg.Path))...)
}
