// Package condition keeps the open conditions of the agent: what is wrong, since when,
// and why, under codes that do not change.
//
// Guarantees: it is safe for concurrent use. A condition keeps its beginning while it
// stays open, also when its text changes.
//
// Not here: the decision to open a condition.
package condition

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Condition is one problem.
type Condition struct {
	Code    string    `json:"code"`              // such as "template-failed"
	Subject string    `json:"subject,omitempty"` // what it is about, such as the name of a template
	Since   time.Time `json:"since"`
	Text    string    `json:"text"`
	Exit    int       `json:"exit,omitempty"` // status of the command that failed; 0: none did
}

// Name is the code with the subject, if it has one.
func (c Condition) Name() string {
	if c.Subject == "" {
		return c.Code
	}
	return c.Code + " " + c.Subject
}

type key struct{ code, subject string }

// Set is the open conditions.
type Set struct {
	// Changed, when set before the first use, is called after each opening and
	// closing, outside of the lock.
	Changed func(c Condition, open bool)
	// Reworded, likewise, is called after each change of text.
	Reworded func(c Condition)

	mu   sync.Mutex // mu guards open.
	open map[key]Condition
}

// Open opens a condition or changes its text. An empty text closes it.
func (s *Set) Open(k *Kind, subject, text string) {
	s.OpenAs(k, Condition{Subject: subject, Text: text})
}

// OpenAs opens a condition with all that is known of it, except its code. Without Since it
// begins now.
func (s *Set) OpenAs(kind *Kind, c Condition) {
	if c.Text == "" {
		s.Close(kind, c.Subject)
		return
	}
	k := key{kind.Code, c.Subject}
	s.mu.Lock()
	old, was := s.open[k]
	if was && old.Text == c.Text && old.Exit == c.Exit {
		s.mu.Unlock()
		return
	}
	if c.Code = kind.Code; was {
		c.Since = old.Since
	} else if c.Since.IsZero() {
		c.Since = time.Now()
	}
	if s.open == nil {
		s.open = map[key]Condition{}
	}
	s.open[k] = c
	s.mu.Unlock()
	switch {
	case was && s.Reworded != nil:
		s.Reworded(c)
	case !was && s.Changed != nil:
		s.Changed(c, true)
	}
}

// Close closes a condition; it reports whether it was open.
func (s *Set) Close(kind *Kind, subject string) bool {
	k := key{kind.Code, subject}
	s.mu.Lock()
	c, was := s.open[k]
	delete(s.open, k)
	s.mu.Unlock()
	if was && s.Changed != nil {
		s.Changed(c, false)
	}
	return was
}

// Set opens the condition when err is not nil, and closes it otherwise.
func (s *Set) Set(k *Kind, subject string, err error) {
	if err == nil {
		s.Close(k, subject)
		return
	}
	c := Condition{Subject: subject, Text: err.Error()}
	if e, ok := errors.AsType[interface {
		error
		ExitStatus() int
	}](err); ok {
		c.Exit = e.ExitStatus()
	}
	s.OpenAs(k, c)
}

// Retain closes every condition of the kind whose subject keep refuses, for
// subjects that no longer exist.
func (s *Set) Retain(k *Kind, keep func(subject string) bool) {
	for _, c := range s.List() {
		if c.Code == k.Code && !keep(c.Subject) {
			s.Close(k, c.Subject)
		}
	}
}

// Has reports whether the condition is open.
func (s *Set) Has(k *Kind, subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.open[key{k.Code, subject}]
	return ok
}

// List returns the open conditions, the oldest first.
func (s *Set) List() []Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Without one the list is empty and not nil: as JSON it is [].
	list := slices.AppendSeq([]Condition{}, maps.Values(s.open))
	slices.SortFunc(list, func(a, b Condition) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Subject, b.Subject))
	})
	return list
}

// Kind is one kind of condition, with all that is known about it.
type Kind struct {
	Code    string // it never changes
	Subject string // what the subject names, "" when there is none
	// Failing: something that is wanted is not in place. The other kinds leave the
	// host degraded: it serves, and something is held or kept.
	Failing bool
	Output  bool   // the text may have the output of a command, or values of a template
	Meaning string // what is true while it is open
	Use     string // what is in use meanwhile
	Do      string // what to do about it; NAME stands for the subject
}

var kinds []*Kind

// define adds a kind with its Meaning, Use and Do.
func define(k Kind, meaning, use, do string) *Kind {
	k.Meaning, k.Use, k.Do = meaning, use, do
	kinds = append(kinds, &k)
	return &k
}

// Kinds returns every kind, in the order of the codes.
func Kinds() []*Kind { return kinds }

// Kind returns the kind of the condition, with its subject in Do; the zero Kind for
// a code that this version does not know.
func (c Condition) Kind() Kind {
	i := slices.IndexFunc(kinds, func(k *Kind) bool { return k.Code == c.Code })
	if i < 0 {
		return Kind{}
	}
	k := *kinds[i]
	if c.Subject != "" {
		k.Do = strings.ReplaceAll(k.Do, "NAME", c.Subject)
	}
	return k
}

// The kinds of conditions that an agent opens.
var (
	AgentIDTaken = define(Kind{Code: "agent-id-taken", Failing: true},
		"Another agent of the fleet has the same id. Both agents report it.",
		"The record of the host comes from the agent that started first. Members and candidates of both agents stay.",
		"Give each agent its own `id` in the block `agent`. A cloned machine brings a copied state directory: remove it there.")
	DestinationTaken = define(Kind{Code: "destination-taken", Subject: "file", Failing: true},
		"A key of a `for_each` names a file that exists and that the agent did not write. Or two keys want a file and a directory of the same name, or the directory of the file is not there. The other files of the key wait, too.",
		"The file that is there, as it is.",
		"Rename a key in ZooKeeper, or move the file away. `adopt = true` in the template takes such files over. Then `zkagent reload`.")
	DNSNotListening = define(Kind{Code: "dns-not-listening", Subject: "address", Failing: true},
		"The agent cannot answer DNS queries at the address of `dns.listen`.",
		"Everything else. DNS clients get no answer.",
		"Another program has the port (`ss -lunp` and `ss -ltnp` name it), or the address is not of this host. Correct `dns.listen`, or end the other program. The agent tries again by itself.")
	Drift = define(Kind{Code: "drift", Subject: "file"},
		"Something other than the agent has changed the file, and the template says `drift = \"report\"`. Or another program changes it again and again. Or the agent cannot read it; the text contains the reason.",
		"The changed file. With `drift = \"repair\"` the agent writes it again at once three times in a row, then after 1 to 30 minutes.",
		"If another program writes the file, such as a second agent, give each its own. Otherwise look at it with `zkagent render NAME --diff`. Take the change into the template, or write the file again with `zkagent render NAME`.")
	FilesNotWatched = define(Kind{Code: "files-not-watched", Subject: "directory"},
		"The agent cannot watch the directory of settings or templates for changes.",
		"The settings that were loaded last.",
		"After an edit run `zkagent reload`. The usual cause is the limit of inotify instances: raise `fs.inotify.max_user_instances`.")
	FilesStuck = define(Kind{Code: "files-stuck", Subject: "file, template or bundle", Failing: true},
		"A call on a file or a directory has not returned for a minute.",
		"The files as they are. The template waits for the call; other templates do not.",
		"The disk hangs: usually a network file system whose server is gone. Look at it with `stat` and `mount`. The agent continues when the call returns.")
	GroupEmpty = define(Kind{Code: "group-empty", Subject: "template or bundle"},
		"A group that the template uses has no members that are up, and the template has no `{{ else }}`, nor the group `on_empty = \"render\"`, for this case.",
		"The file as it was, if there was one.",
		"Do nothing if the group is meant to be empty. Otherwise find out why no member is up: run `zkagent members`, and look at the hosts of the members. `on_empty = \"render\"` writes a file without members.")
	GuardsRunning = define(Kind{Code: "guards-running"},
		"A previous process of this agent was leader, and commands that it started are still running.",
		"Leader-only hooks wait.",
		"Do nothing: they end by themselves, at the latest with their lease. `systemctl status zkagent` shows the processes.")
	HookClock = define(Kind{Code: "hook-clock", Subject: "hook"},
		"The latest slot of the schedule that a host has run is ahead of this host's clock.",
		"The hook's other triggers.",
		"A clock is wrong: on this host, or on the host that ran the slot. Correct it. If the slot is far ahead, delete the hook's ledger next to the election: the schedule then begins anew.")
	HookFailed = define(Kind{Code: "hook-failed", Subject: "hook", Failing: true, Output: true},
		"The latest run of the hook failed, and so did its retries.",
		"Other hooks, and all files.",
		"Read its output with `zkagent hooks log NAME`, and repair the cause. The condition closes when `zkagent hooks run NAME` succeeds.")
	HookLedger = define(Kind{Code: "hook-ledger", Subject: "hook", Failing: true},
		"The agent cannot read or write the record of the hook's runs.",
		"The hook waits: otherwise it might do its work twice.",
		"The text shows the cause. It is an ACL (for a leader-only hook, of the znode next to the election), or a state directory that is full or read-only.")
	HookSchedule = define(Kind{Code: "hook-schedule", Subject: "hook", Failing: true},
		"The agent cannot use the schedule of the hook.",
		"The hook's other triggers.",
		"Correct `schedule` in the settings; `zkagent validate` shows the error.")
	HookUnknown = define(Kind{Code: "hook-unknown", Subject: "hook", Failing: true, Output: true},
		"The leader died while it ran a leader-only hook. Whether the hook finished is unknown.",
		"The agent does not run the hook again, because the settings do not call it idempotent.",
		"Find out whether its work was done. If not, run `zkagent hooks run NAME`. Set `idempotent = true` if running it twice does no harm.")
	HTTPNotListening = define(Kind{Code: "http-not-listening", Subject: "address", Failing: true},
		"The agent cannot serve the page, the metrics and the health checks at the address of `http.listen`.",
		"Everything else. After a reload, the previous listener stays.",
		"Another program has the port (`ss -ltnp` names it), or the address is not of this host. Correct `http.listen`, or end the other program. The agent tries again by itself.")
	IdentityNotRenewed = define(Kind{Code: "identity-not-renewed"},
		"The agent cannot renew its identity for ZooKeeper, such as a Kerberos ticket. The text shows the reason.",
		"The present connection. New connections use the old ticket as long as it is valid.",
		"Follow the text; docs/identity.md has a list. The agent tries again by itself.")
	KeyMissing = define(Kind{Code: "key-missing", Subject: "template or bundle", Failing: true},
		"A key that the template needs is not in its config.",
		"The file as it was, if there was one.",
		"`zkagent render NAME --diff` names the key and the line of the template. Publish the key. If it may be missing, use `keyOrDefault` or `keyExists` in the template.")
	LastGoodDamaged = define(Kind{Code: "last-good-damaged"},
		"The agent cannot read the latest saved view in the state directory.",
		"The one before it, if any.",
		"Do nothing if ZooKeeper answers: the agent saves a new view. If the condition comes back, look for a failing disk.")
	LastGoodNotSaved = define(Kind{Code: "last-good-not-saved"},
		"The agent cannot save its view in the state directory.",
		"All files, which are up to date. A start without ZooKeeper would use an older view.",
		"Free space in `/var/lib/zkagent`, or correct its owner (`zkagent`) and mode.")
	LastKnownGood = define(Kind{Code: "last-known-good"},
		"ZooKeeper did not answer when the agent started. The agent uses the view that it saved before.",
		"Files of the saved view. The text shows its time.",
		"Bring ZooKeeper back, or correct the servers in the settings. The condition closes when every source has answered.")
	MembersHeld = define(Kind{Code: "members-held", Subject: "group"},
		"Many members of the group have vanished from ZooKeeper at once. The guard does not believe it yet.",
		"The group as it was, and new members.",
		"Run `zkagent members NAME --here`: do the members still answer? If they are gone, run `zkagent members accept NAME`. The guard accepts the loss by itself when `hold` is over and, with `probe = true`, when the members do not answer.")
	NameRefused = define(Kind{Code: "name-refused", Subject: "election, set of groups or template"},
		"ZooKeeper has a name that could mean something else in a file, a command or a path: the id of a leader, the name of a group of a set, or the key of an element of a `for_each`. A name has 1 to 128 letters, digits and `._:-`, and does not begin with `-`. A name of a file does not begin with a dot either. The text names the znode or the key.",
		"Everything else. The leader has no id, the group is not in its set, and the element has no file.",
		"Rename it, or find out who wrote it. A template that needs such an id or name as it is calls `rawLeaderID` or `rawGroupNames`, and quotes it.")
	RecoverFailed = define(Kind{Code: "recover-failed", Subject: "template or bundle", Failing: true},
		"The agent cannot finish a swap of files, or a reload, that a previous process left half done.",
		"The files as they are.",
		"The text names the file. Remove the obstacle in its place, or correct the permissions or the free space of its directory. The agent tries again by itself; for a template that the settings no longer have, when it starts.")
	ReloadFailed = define(Kind{Code: "reload-failed", Subject: "template or bundle", Failing: true, Output: true},
		"The latest run of the reload failed. The agent tries again.",
		"The new files, while the agent repeats the reload (`retry`). Then it puts the old files back, and removes files that did not exist. With `on_failure = \"keep\"` the new files stay.",
		"The text shows the output of the command. Run it by hand to see more.")
	ReloadHalted = define(Kind{Code: "reload-halted", Subject: "template or bundle", Output: true},
		"Another host failed its rolling reload, so this host does not begin its own.",
		"The files and the service as they were before that version.",
		"The text names the host and the reason. Repair it or publish another version, then run `zkagent reload --clear-halt NAME`.")
	ReloadPending = define(Kind{Code: "reload-pending", Subject: "template or bundle", Failing: true, Output: true},
		"The service has not read the files that are in place: their reload has not succeeded yet. The text names them: the new files or the old ones.",
		"The files that the text names. The service still uses the files that it read before.",
		"Run the reload by hand to see why it fails. The agent tries again, also after a restart.")
	RestoreFailed = define(Kind{Code: "restore-failed", Subject: "template or bundle", Failing: true, Output: true},
		"The reload failed, and the agent cannot put the old files back.",
		"New files, which the service has refused.",
		"Act now: the next restart of the service may fail. The text names the file; its directory has the `backup` copies.")
	RolloutFailed = define(Kind{Code: "rollout-failed", Subject: "config", Failing: true, Output: true},
		"This host refused a version of a rollout.",
		"The version before.",
		"The text shows the output of the check or reload. Publish a corrected version, or `zkagent rollout undo NAME`.")
	RolloutHalted = define(Kind{Code: "rollout-halted", Subject: "config", Output: true},
		"A rollout of the config waits for an operator: it has halted, a host has refused the version that should replace a halted one, or its health gate has paused it. The host that coordinates the rollout reports it. The text names the version and the reason.",
		"The new version on the hosts that have started, and the previous one on the others.",
		"`zkagent rollout status NAME` shows each host, and the commands that retry the rollout, undo it or replace it.")
	RolloutsNotFollowed = define(Kind{Code: "rollouts-not-followed", Subject: "config", Failing: true},
		"The agent cannot take part in the rollouts of the config.",
		"The version that is in use.",
		"The usual cause is an ACL: agents must be able to create znodes below the config's `rollouts`. Rollouts wait for this host meanwhile.")
	ServiceCritical = define(Kind{Code: "service-critical", Subject: "service", Failing: true, Output: true},
		"A check of the service failed. Its member is out of ZooKeeper, or marked as down.",
		"The other members of the group.",
		"The text shows the check and its last output. `zkagent status -o wide` shows every check of the service with its latest result.")
	ServiceNotRegistered = define(Kind{Code: "service-not-registered", Subject: "service", Failing: true},
		"The service has no member in ZooKeeper yet, or no longer. The text contains the reason.",
		"The other members of the group.",
		"While the checks have not passed, wait, or see them with `zkagent status -o wide`. If ZooKeeper refuses the znode, the text contains its answer, and `zkagent doctor` compares the ACL with the identity of the agent. If the znode belongs to another session, it goes with that session.")
	SettingsInvalid = define(Kind{Code: "settings-invalid"},
		"The agent refuses the latest settings or templates on disk.",
		"The settings before them.",
		"`zkagent validate` shows every error with file, line and column.")
	SourceGone = define(Kind{Code: "source-gone", Subject: "config"},
		"A config that was in use was deleted in ZooKeeper, or `ready` names a version that was deleted. The text names it.",
		"The last tree. A host that starts without a saved view has none.",
		"Restore the config, or publish it again: the section \"Delete and restore\" of docs/fleet.md has the commands. A host that still uses the tree has it in its saved view.")
	SourceUnusable = define(Kind{Code: "source-unusable", Subject: "config, group or group of a set"},
		"The latest state of a config tree or a group cannot be used: a key that may not be read, a wrong digest, more data than `max_bytes`. The text contains the cause.",
		"The last good state. If there was none, nothing is rendered from it.",
		"Correct the cause that the text names: the ACL of the key, or `max_bytes` in the block `config`, `group` or `groups`. Publish a damaged config again, or restore it: the section \"Damage\" of docs/fleet.md has the commands.")
	StateDir = define(Kind{Code: "state-dir", Subject: "directory"},
		"The state directory cannot be used.",
		"No handoff, no saved view: a restart makes members blink.",
		"Create it, owned by the user of the agent, mode 0750; another agent must not use it. Then restart the agent.")
	TemplateFailed = define(Kind{Code: "template-failed", Subject: "template or bundle", Failing: true, Output: true},
		"The latest rendering, check, swap or reload failed.",
		"The last good files.",
		"`zkagent status -o wide` has the error with the line of the template, or the output of the check. `zkagent render NAME --diff` tries it by hand.")
	UnitFailed = define(Kind{Code: "unit-failed", Subject: "source", Failing: true},
		"A source (config, group, service, election) ended with an error. The agent starts it again, after growing pauses.",
		"Its last good state.",
		"The text shows ZooKeeper's answer. If an ACL does not permit it, the text names the path: `zkagent doctor` compares the ACL with the identity of the agent.")
	WaitingForSources = define(Kind{Code: "waiting-for-sources", Failing: true},
		"Some sources have not reported yet. The agent renders nothing until then.",
		"The files that were there before.",
		"The text names the sources. A config may lack its `ready` znode: publish the config, or set `layout = \"plain\"`. If the session is not connected, see `zkagent status`.")
	ZooKeeperReadOnly = define(Kind{Code: "zookeeper-read-only"},
		"No server of the ensemble has a majority. The agent reads from one that is read-only.",
		"The data of that server, which may be old. The agent registers nothing and does not lead, and leader-only hooks do not run. Members stay if the majority comes back within their session timeout.",
		"Bring the quorum back. The agent continues by itself.")
	ZooKeeperRefused = define(Kind{Code: "zookeeper-refused"},
		"A server of the ensemble answers, but refuses the identity or the certificate of the agent, or the agent refuses its certificate. The text names the reason.",
		"All files and the last view. Members stay for the session timeout.",
		"Correct the `auth` or the `tls` block of the settings, or the users and certificates of the servers. The agent tries again every 3 s.")
	ZooKeeperUnreachable = define(Kind{Code: "zookeeper-unreachable"},
		"No server of the ensemble answers. The text names the latest reason.",
		"All files and the last view. Members stay for the session timeout.",
		"`zkagent doctor` asks each server by itself. Bring the quorum back, or correct the servers in the settings. The agent continues by itself.")
)
