package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/session"
)

// Host records: each agent writes its own state into ZooKeeper.
//
//	/zkagent/agents/<h>/<id>        (E) the record of a running agent
//	/zkagent/known/<h>/<id>         (P) that the host exists, and how it left
//	/zkagent/known/<h>/<id>/rival   (E) a second agent has the same id
//
// h is the shard of the id, as [Shard] computes it. The command line, the
// page, the metrics and the monitoring check all use these records, so they agree.
// No process watches all records; a view reads them on demand.
//
// Guarantees: a record has at most 1 kB and counts what it leaves out. It never
// contains the output of a command. An agent never deletes the record of another
// session.
//
// Not guaranteed: the exact time at which a host was lost. ZooKeeper does not store
// it. The first reader that misses the record notes the current time.
const (
	AgentsPath = "/zkagent/agents"
	KnownPath  = "/zkagent/known"
)

// AgentPath is the record of an agent.
func AgentPath(id string) string { return AgentsPath + "/" + Shard(id) + "/" + id }

func knownAs(id string) string { return KnownPath + "/" + Shard(id) + "/" + id }

// ForgetAfter is how long a host that stopped or was lost stays known.
const ForgetAfter = 7 * 24 * time.Hour

// recordMax bounds a record that we write, foreignMax one that we read.
const (
	recordMax  = 1000
	foreignMax = 64 << 10
)

// Health is the state of a host in one word. Every view uses only these words.
type Health string

// The words of health.
const (
	Lost        Health = "lost"        // its session ended, and the agent had not stopped on purpose
	Failing     Health = "failing"     // a service or file is not as the settings want it
	Degraded    Health = "degraded"    // it serves, and something is held, kept or about to fail
	Maintenance Health = "maintenance" // taken out of rollouts on purpose
	Stopped     Health = "stopped"     // its agent was stopped on purpose
	OK          Health = "ok"
)

// Healths are the words of health, the worst first.
var Healths = []Health{Lost, Failing, Degraded, Maintenance, Stopped, OK}

// Rank orders the words of health, the worst first.
func (h Health) Rank() int {
	if i := slices.Index(Healths, h); i >= 0 {
		return i
	}
	return slices.Index(Healths, Failing)
}

// Record is an agent's report about itself. Readers must expect garbage and records
// of other program versions.
type Record struct {
	Version     string                `json:"version"` // of the program
	Since       time.Time             `json:"since"`   // when the process began
	Health      Health                `json:"health"`
	At          time.Time             `json:"at,omitzero"` // when Health became what it is
	Maintenance string                `json:"maintenance,omitempty"`
	Configs     map[string]ConfigUse  `json:"configs,omitempty"`
	Files       map[string]string     `json:"files,omitempty"` // template or bundle -> state, or state@version in use
	Services    map[string]ServiceUse `json:"services,omitempty"`
	Leads       []string              `json:"leads,omitempty"`
	Holds       []string              `json:"holds,omitempty"` // groups whose guard holds members
	Faults      []Fault               `json:"faults,omitempty"`
	More        map[string]int        `json:"more,omitempty"` // what did not fit, by field
}

// ConfigUse has the versions of a config that a host knows and uses.
type ConfigUse struct {
	Known    int64 `json:"known"`              // the latest that it has read
	Accepted int64 `json:"accepted,omitempty"` // the one that its templates are rendered from
	// Path is the root znode: hosts may give a config different names.
	Path string `json:"path,omitempty"`
}

// Newer is the known version when another one is accepted; 0: none is.
func (u ConfigUse) Newer() int64 {
	if u.Known > u.Accepted {
		return u.Known
	}
	return 0
}

// UseOf is how far the host is with the config that has the root znode.
func (r *Record) UseOf(path string) ConfigUse {
	for _, use := range r.Configs {
		if use.Path == path {
			return use
		}
	}
	return ConfigUse{}
}

// File returns the state of a template or bundle, and the version that its files use;
// 0: unknown.
func (r *Record) File(name string) (string, int64) {
	state, number, _ := strings.Cut(r.Files[name], "@")
	version, _ := strconv.ParseInt(number, 10, 64)
	return state, version
}

// knowsMore reports whether only the versions that the host knows have changed.
func (r Record) knowsMore(than Record) bool {
	more := false
	for name, use := range r.Configs {
		old := than.Configs[name]
		more = more || use.Known != old.Known
		if use.Known = old.Known; use != old {
			return false
		}
	}
	if !more || len(r.Configs) != len(than.Configs) {
		return false
	}
	r.Configs = than.Configs
	return string(r.encode()) == string(than.encode())
}

// ServiceUse is one service of a host.
type ServiceUse struct {
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
	Check string    `json:"check,omitempty"` // that has failed
	Exit  int       `json:"exit,omitempty"`  // of that check's command
}

// Fault is an open condition without its text. The text may contain the output of a
// command, so it stays on the host.
type Fault struct {
	Code    string    `json:"code"`
	Subject string    `json:"subject,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Stage   string    `json:"stage,omitempty"`  // of an apply: render, check, reload, ...
	Exit    int       `json:"exit,omitempty"`   // status of the command that failed
	Digest  string    `json:"digest,omitempty"` // of the text: equal faults have equal ones
}

// String is the fault in words.
func (f Fault) String() string {
	text := f.Code
	if f.Subject != "" {
		text += " " + f.Subject
	}
	switch {
	case f.Stage != "" && f.Exit != 0:
		text += fmt.Sprintf(": %s failed with exit status %d", f.Stage, f.Exit)
	case f.Stage != "":
		text += ": " + f.Stage + " failed"
	case f.Exit != 0:
		text += fmt.Sprintf(": exit status %d", f.Exit)
	}
	return text
}

// HostStatus is one host of the fleet, from its record and its znode below known.
type HostStatus struct {
	Record

	ID     string    `json:"id"`
	Asof   time.Time `json:"asof,omitzero"` // when the record was written
	Detail string    `json:"detail,omitempty"`
}

// encode returns the record within its bound. It drops files and faults first.
func (r Record) encode() []byte {
	base := r
	base.Configs, base.Files, base.Services, base.Leads, base.Holds, base.Faults, base.More = nil, nil, nil, nil, nil, nil, nil
	base.Version, base.Maintenance = Clip(r.Version, 60), Clip(r.Maintenance, 100)
	out := base
	out.Configs, out.Files, out.Services, out.More = map[string]ConfigUse{}, map[string]string{}, map[string]ServiceUse{}, map[string]int{}
	room := recordMax - size(base) - 160 // for the names of the fields and the counts
	fits := func(field string, bytes int) bool {
		if bytes+1 > room {
			out.More[field]++
			return false
		}
		room -= bytes + 1
		return true
	}
	faults := func(list []Fault) {
		for _, f := range list {
			if f.Subject = Clip(f.Subject, 80); fits("faults", size(f)) {
				out.Faults = append(out.Faults, f)
			}
		}
	}
	names := func(field string, list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return !fits(field, size(name)) })
	}
	fine := func(use string) bool { return use == "ok" || strings.HasPrefix(use, "ok@") }
	first := min(1, len(r.Faults))
	faults(r.Faults[:first])
	fitMap(fits, "services", r.Services, out.Services, func(u ServiceUse) bool { return u.State != "registered" })
	fitMap(fits, "configs", r.Configs, out.Configs, func(ConfigUse) bool { return true })
	out.Leads, out.Holds = names("leads", r.Leads), names("holds", r.Holds)
	faults(r.Faults[first:])
	fitMap(fits, "services", r.Services, out.Services, func(u ServiceUse) bool { return u.State == "registered" })
	fitMap(fits, "files", r.Files, out.Files, func(use string) bool { return !fine(use) })
	fitMap(fits, "files", r.Files, out.Files, fine)
	data, err := json.Marshal(out)
	if err != nil || len(data) > recordMax {
		data, _ = json.Marshal(base)
	}
	return data
}

// fitMap puts those of a map that are wanted, and fit, into another one.
func fitMap[V any](fits func(field string, bytes int) bool, field string, from, into map[string]V, wanted func(V) bool) {
	for _, name := range sortedKeys(from) {
		if v := from[name]; wanted(v) && fits(field, size(name)+1+size(v)) {
			into[name] = v
		}
	}
}

func size(v any) int {
	data, _ := json.Marshal(v)
	return len(data)
}

// Clip shortens a text from an untrusted writer. It never splits a character.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + " …"
}

// decodeHost shows a host also when its record is garbage or of another version.
func decodeHost(id string, data []byte) HostStatus {
	h := HostStatus{ID: id}
	err := errors.New("too large")
	if len(data) <= foreignMax {
		err = json.Unmarshal(data, &h.Record)
	}
	if err != nil {
		return HostStatus{ID: id, Record: Record{Health: Failing}, Detail: "its record is not one that this version understands"}
	}
	if !slices.Contains(Healths, h.Health) {
		h.Detail = fmt.Sprintf("its record has no health that this version knows (%q)", Clip(string(h.Health), 40))
		h.Health = Failing
		return h
	}
	parts := lists.Map(h.Faults, Fault.String)
	if n := h.More["faults"]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	if h.Maintenance != "" {
		parts = append(parts, "maintenance: "+h.Maintenance)
	} else {
		for _, name := range sortedKeys(h.Services) {
			if h.Services[name].State == "maintenance" {
				parts = append(parts, "service "+name+" in maintenance")
			}
		}
	}
	h.Detail = Clip(strings.Join(parts, "; "), 500)
	return h
}

var shardName = regexp.MustCompile(`^[0-3][0-9a-f]$`)

// namesBelow lists the children of shards; without shards, of all that the root has.
func namesBelow(ctx context.Context, s *session.Session, root string, shards ...string) ([]string, error) {
	if len(shards) == 0 {
		names, _, err := s.Children(ctx, root)
		if err != nil {
			return nil, ignore(err, session.ErrNoNode)
		}
		shards = slices.DeleteFunc(names, func(n string) bool { return !shardName.MatchString(n) })
	}
	ids, err := listShards(ctx, s, root, shards)
	return slices.Concat(slices.Collect(maps.Values(ids))...), err
}

// listShards lists the children of shards, by shard and sorted. It leaves out empty ones.
func listShards(ctx context.Context, s *session.Session, root string, shards []string) (map[string][]string, error) {
	paths := lists.Map(shards, func(shard string) string { return root + "/" + shard })
	lists, err := s.ChildrenMany(ctx, paths)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", root, err)
	}
	ids := map[string][]string{}
	for i, l := range lists {
		if l.Err != nil && !errors.Is(l.Err, session.ErrNoNode) {
			return nil, fmt.Errorf("list %s: %w", paths[i], l.Err)
		}
		if len(l.Names) > 0 {
			ids[shards[i]] = slices.Sorted(slices.Values(l.Names))
		}
	}
	return ids, nil
}

// Agents reads every host of the fleet, the worst first. It includes known hosts
// whose agent does not run.
func Agents(ctx context.Context, s *session.Session) ([]HostStatus, error) {
	live, err := namesBelow(ctx, s, AgentsPath)
	if err != nil {
		return nil, err
	}
	known, err := namesBelow(ctx, s, KnownPath)
	if err != nil {
		return nil, err
	}
	hosts, runs := make([]HostStatus, 0, len(live)), map[string]bool{}
	err = getEach(ctx, s, live, AgentPath, func(id string, r session.Result) error {
		h := HostStatus{ID: id, Record: Record{Health: Failing}}
		if r.Err != nil {
			h.Detail = "its record cannot be read: " + r.Err.Error()
		} else {
			h = decodeHost(id, r.Data)
			h.Asof = time.UnixMilli(r.Stat.Mtime)
		}
		runs[id], hosts = true, append(hosts, h)
		return nil
	})
	if err != nil {
		return nil, err
	}
	gone, err := readGone(ctx, s, slices.DeleteFunc(known, func(id string) bool { return runs[id] }))
	if err != nil {
		return nil, err
	}
	hosts = append(hosts, gone...)
	slices.SortFunc(hosts, func(a, b HostStatus) int {
		return cmp.Or(cmp.Compare(a.Health.Rank(), b.Health.Rank()), cmp.Compare(a.ID, b.ID))
	})
	return hosts, nil
}

// getEach reads the znodes of ids together, and calls use for each that exists.
func getEach(ctx context.Context, s *session.Session, ids []string, path func(id string) string, use func(id string, r session.Result) error) error {
	paths := lists.Map(ids, path)
	results, err := s.GetMany(ctx, paths)
	for i, r := range results {
		if err == nil && !errors.Is(r.Err, session.ErrNoNode) {
			err = use(ids[i], r)
		}
	}
	return err
}

// ErrLive says that a host cannot be forgotten, because its agent runs.
var ErrLive = errors.New("its agent is running")

type knownHost struct {
	First   time.Time `json:"first"`            // start of its first agent
	Stopped time.Time `json:"stopped,omitzero"` // a clean stop
	Lost    time.Time `json:"lost,omitzero"`    // when a reader first missed its record
}

func (k *knownHost) gone() time.Time {
	return cmp.Or(k.Stopped, k.Lost)
}

// editKnown changes the znode of a known host. edit returns false when nothing is to be
// written; found is false for a host that is not known, which is created.
func editKnown(ctx context.Context, s *session.Session, id string, edit func(k *knownHost, found bool) bool) error {
	path := knownAs(id)
	return transact(ctx, s, path, func(bool) ([]session.Op, error) {
		var k knownHost
		data, st, err := s.Get(ctx, path)
		found := !errors.Is(err, session.ErrNoNode)
		if err != nil && found {
			return nil, err
		}
		_ = json.Unmarshal(data, &k) // garbage: without its past
		switch {
		case !edit(&k, found):
			return nil, nil
		case found && !k.Lost.IsZero(): // a host that is back reads this znode and may not change it
			return append(absent(AgentPath(id)), session.SetOp(path, encode(k), st.Version)), nil
		case found:
			return []session.Op{session.SetOp(path, encode(k), st.Version)}, nil
		}
		return []session.Op{session.CreateOp(path, encode(k), session.Persistent)}, s.CreateParents(ctx, path)
	})
}

// missed notes that a host is missing. It tries once, because a host that is back makes
// every try fail, and ignores errors: not every reader may write.
func missed(ctx context.Context, s *session.Session, id string, now time.Time) time.Time {
	at, tried := now.UTC().Truncate(time.Second), false
	_ = editKnown(ctx, s, id, func(k *knownHost, found bool) bool {
		again := tried
		k.Lost, tried = at, true
		return found && !again
	})
	return at
}

// readGone reads hosts without a record, and notes when each was first missed.
func readGone(ctx context.Context, s *session.Session, list []string) ([]HostStatus, error) {
	var hosts []HostStatus
	err := getEach(ctx, s, list, knownAs, func(id string, r session.Result) error {
		var k knownHost
		_ = json.Unmarshal(r.Data, &k) // on garbage, show the host without its past
		h := HostStatus{ID: id, Record: Record{Health: Stopped, At: k.Stopped}, Detail: "its agent was stopped"}
		if k.Stopped.IsZero() {
			h.Health, h.Detail, h.At = Lost, "its session has ended without a stop", k.Lost
			if k.Lost.IsZero() && r.Err == nil {
				h.At = missed(ctx, s, id, time.Now())
			}
		}
		hosts = append(hosts, h)
		return nil
	})
	return hosts, err
}

// Forget removes a stopped or lost host from the known hosts.
func Forget(ctx context.Context, s *session.Session, id string) error {
	switch err := forget(ctx, s, id, -1); {
	case errors.Is(err, session.ErrNodeExists):
		return fmt.Errorf("forget %s: %w", id, ErrLive)
	case err != nil:
		return fmt.Errorf("forget %s: %w", id, err)
	}
	return nil
}

// forget fails with session.ErrNodeExists when the host has a record: the znode of a
// host that is known again may have the version of the first one.
func forget(ctx context.Context, s *session.Session, id string, version int32) error {
	err := s.CreateParents(ctx, AgentPath(id))
	if err == nil {
		_, err = s.Multi(ctx, append(absent(AgentPath(id)), session.DeleteOp(knownAs(id), version))...)
	}
	return err
}

// sweep forgets hosts that have been gone for ForgetAfter. An agent sweeps its own
// shard and the following ones, up to the next shard that has an agent. So every
// shard is swept, and in a large fleet each agent reads one or two shards.
func sweep(ctx context.Context, s *session.Session, id string, now time.Time) error {
	var first int
	if _, err := fmt.Sscanf(Shard(id), "%x", &first); err != nil {
		return err
	}
	for i := range Shards {
		h := fmt.Sprintf("%02x", (first+i)%Shards)
		live, err := namesBelow(ctx, s, AgentsPath, h)
		if err != nil || i > 0 && len(live) > 0 {
			return err
		}
		known, err := namesBelow(ctx, s, KnownPath, h)
		if err != nil {
			return err
		}
		known = slices.DeleteFunc(known, func(n string) bool { return slices.Contains(live, n) })
		err = getEach(ctx, s, known, knownAs, func(id string, r session.Result) error {
			var k knownHost
			_ = json.Unmarshal(r.Data, &k)
			switch {
			case r.Err != nil:
				return r.Err
			case k.gone().IsZero():
				missed(ctx, s, id, now)
			case now.Sub(k.gone()) >= ForgetAfter:
				if err := forget(ctx, s, id, r.Stat.Version); !raced(err) {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
