package fleet

import (
	"cmp"
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
	return alone(ctx, s, cfg, "publish", func(ctx context.Context, p *publisher) (Result, error) { return p.run(ctx, true) })
}

// Prepare writes keys as a version and does not put it into use. A rollout does
// that later by setting ready. Prepare rejects a frozen config, because the rollout
// would fail.
func Prepare(ctx context.Context, s *session.Session, cfg PublishConfig) (Result, error) {
	if cfg.Layout == config.LayoutFlat {
		return Result{}, trees.NoVersions(cfg.Path)
	}
	return alone(ctx, s, cfg, "publish", func(ctx context.Context, p *publisher) (Result, error) { return p.run(ctx, false) })
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

func (c *PublishConfig) checkGeneration(st *trees.State) error {
	if c.Check != nil && *c.Check != st.Generation() {
		return &ConflictError{Path: c.Path, Want: *c.Check, Have: st.Generation()}
	}
	return nil
}

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

func changesOf(st *trees.State, keys *view.Keys) []config.Change {
	return config.Diff(view.NewTree(view.Tree{}, st.Keys()), view.NewTree(view.Tree{}, keys))
}

func unfinishedError(root string) error {
	return fmt.Errorf("config %s: %w: there are keys but no ready znode. This is not a config, or another writer "+
		"is at work or has died. To finish, publish the whole tree again, or declare the present keys complete", root, ErrUnfinished)
}

// check looks for reasons to refuse the keys for the tree in use.
func (c *PublishConfig) check(st *trees.State) error {
	if c.base != nil && len(c.base.ChangedRows(st)) > 0 {
		return c.otherTool(nil)
	}
	var err error
	if !c.Force {
		err = cmp.Or(st.Damaged, checkRatio(st.Keys(), c.Keys))
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

// Plan describes the changes that a publish would make.
type Plan struct {
	Layout string `json:"layout"`
	// From is the generation in use, 0 for none. The guarded publish takes it as
	// Check.
	From int64 `json:"from"`
	// Next is the version that a publish would get, unless another publisher is
	// faster; 0 in a flat tree.
	Next    int64           `json:"next,omitempty"`
	Digest  string          `json:"digest,omitempty"`
	Count   int             `json:"count"` // keys
	Size    int64           `json:"size"`  // bytes of all values
	Changes []config.Change `json:"changes"`
	// Subscribers are the agents that use the tree.
	Subscribers []string `json:"subscribers"`
	// Maintenance lists the subscribers in maintenance. A rollout skips them.
	Maintenance []string `json:"maintenance,omitempty"`
	// Frozen has the reason why the config is frozen; nil when it is not.
	Frozen *FrozenError `json:"frozen,omitempty"`
	// Refused holds every reason to refuse the publish, or nil.
	Refused error `json:"-"`
}

// NewPlan returns the changes that a publish would make. It writes nothing. The error only
// reports failed reads; Refused reports an invalid publish.
func NewPlan(ctx context.Context, s *session.Session, cfg PublishConfig) (*Plan, error) {
	var refused []error
	if err := cfg.fill(); err != nil {
		refused = append(refused, err)
	}
	st, err := trees.LookState(ctx, s, cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p := &Plan{From: st.Generation(), Count: len(cfg.Keys), Changes: changesOf(st, view.KeysOf(cfg.Keys))}
	for _, v := range cfg.Keys {
		p.Size += int64(len(v))
	}
	if p.Layout, err = cfg.layoutFor(st); err != nil {
		refused = append(refused, err)
	}
	if bad := cmp.Or(cfg.checkGeneration(st), cfg.check(st)); bad != nil {
		refused = append(refused, bad)
	}
	if p.Frozen, err = Frozen(ctx, s, cfg.Path); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if p.Frozen != nil {
		refused = append(refused, p.Frozen)
	}
	if p.Layout == config.LayoutVersioned {
		m, _ := buildVersion(cfg.Keys)
		p.Digest = m.Sum.String()
		if p.Next, err = guessVersion(ctx, s, cfg.Path); err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
	}
	if p.Subscribers, p.Maintenance, err = subscribed(ctx, s, cfg.Path); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p.Refused = errors.Join(refused...)
	return p, nil
}

// guessVersion guesses the next number from the number of znodes ever created below
// versions. The cversion of versions counts creations and deletions. A deleted
// child has caused both, an existing child one creation.
func guessVersion(ctx context.Context, s *session.Session, root string) (int64, error) {
	_, st, err := s.Children(ctx, root+"/"+trees.ElemVersions)
	if errors.Is(err, session.ErrNoNode) {
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("config %s: list versions: %w", root, err)
	}
	return max(1, (int64(st.Cversion)+int64(st.NumChildren))/2), nil
}

const (
	// MaxRatio is how many times larger or smaller than the tree in use a new tree
	// may be, unless forced.
	MaxRatio = 5
	// maxMessage bounds the message of a version in bytes.
	maxMessage = 16 << 10
	// ratioFloor is the size of a tree in bytes below which checkRatio does not
	// apply: in a small tree, a value of one byte may become one of ten.
	ratioFloor = 4096
)

// checkRatio rejects a change of the size beyond MaxRatio, which is usually a mistake.
func checkRatio(old *view.Keys, keys map[string][]byte) error {
	var was, now int64
	for _, k := range old.All() {
		was += int64(len(k.Value))
	}
	for _, v := range keys {
		now += int64(len(v))
	}
	if err := compareSizes(int64(old.Len()), int64(len(keys)), "keys"); err != nil || max(was, now) <= ratioFloor {
		return err
	}
	return compareSizes(was, now, "bytes")
}

func compareSizes(was, now int64, of string) error {
	verb := "grow"
	switch {
	case was == 0 || was <= MaxRatio*now && now <= MaxRatio*was:
		return nil
	case now < was:
		verb = "shrink"
	}
	return fmt.Errorf("refusing to %s the tree from %d to %d %s, by more than a factor of %d: %w", verb, was, now, of, MaxRatio, config.ErrBounds)
}

// maxEdits bounds how often an edit is repeated because other publishers were
// faster.
const maxEdits = 100

// Edit changes the tree in use. It calls edit with the current keys, which edit may
// change, and publishes the result with cfg, whose Keys it sets. If another publisher was
// faster, it calls edit again with the newer keys, so no change is lost. If edit returns
// an error, nothing changes. If there is no tree, edit gets an empty map.
func Edit(ctx context.Context, s *session.Session, cfg PublishConfig, edit func(keys map[string][]byte) error) (Result, error) {
	s = session.Usable(s, cfg.Path, edit != nil)
	for range maxEdits {
		var err error
		if cfg.base, err = trees.ReadState(ctx, s, cfg.Path); err != nil {
			return Result{}, fmt.Errorf("edit: %w", err)
		}
		generation := cfg.base.Generation()
		cfg.Check, cfg.Keys = &generation, map[string][]byte{}
		if cfg.base.Exists {
			for key, k := range cfg.base.Keys().All() {
				cfg.Keys[key] = append([]byte{}, k.Value...)
			}
		}
		if err = edit(cfg.Keys); err != nil {
			return Result{}, err
		}
		res, err := Publish(ctx, s, cfg)
		if !errors.Is(err, ErrConflict) {
			return res, err
		}
	}
	return Result{}, fmt.Errorf("edit config %s: others were faster %d times: %w", cfg.Path, maxEdits, ErrConflict)
}
