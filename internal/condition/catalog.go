package condition

import (
	"slices"
	"strings"
)

// Entry describes one kind of condition, for the reference.
type Entry struct {
	Code    string
	Subject string // what the subject names, "" when there is none
	Meaning string // what is true while it is open
	Use     string // what is in use meanwhile
	Do      string // what to do about it
}

// failing are the codes of what is wanted and not in place. The others leave the
// host degraded: it serves, and something is held or kept.
var failing = []string{
	"agent-id-taken",
	"destination-taken",
	"dns-not-listening",
	"hook-failed",
	"hook-ledger",
	"hook-schedule",
	"hook-unknown",
	"http-not-listening",
	"key-missing",
	"recover-failed",
	"reload-failed",
	"reload-owed",
	"restore-failed",
	"rollout-failed",
	"rollouts-not-followed",
	"service-critical",
	"service-not-registered",
	"template-failed",
	"unit-failed",
	"waiting-for-sources",
}

// Failing reports whether something that is wanted is not in place.
func (c Condition) Failing() bool { return slices.Contains(failing, c.Code) }

// withOutput are the codes whose text may have the output of a command, or values
// of a template.
var withOutput = []string{
	"hook-failed", "hook-unknown", "reload-failed", "reload-halted", "reload-owed", "restore-failed", "rollout-failed", "service-critical", "template-failed",
}

// HasOutput reports whether the text may have what is not for everybody.
func (c Condition) HasOutput() bool { return slices.Contains(withOutput, c.Code) }

// About returns what is known of the kind of a condition, with the name of its
// subject in the commands that it advises; false for a code that is not in the
// catalog.
func (c Condition) About() (Entry, bool) {
	list := Catalog()
	i := slices.IndexFunc(list, func(e Entry) bool { return e.Code == c.Code })
	if i < 0 {
		return Entry{}, false
	}
	e := list[i]
	if c.Subject != "" {
		e.Do = strings.ReplaceAll(e.Do, "NAME", c.Subject)
	}
	return e, true
}

// Catalog returns every kind of condition that the agent may open, in the
// order of their codes.
func Catalog() []Entry {
	return []Entry{
		{
			"agent-id-taken", "", "Another agent of the fleet has the same id. Both agents report it.",
			"The record of the host is that of the agent that came first. Members and candidates of both agents stay.",
			"Give each agent an `id` of its own in the block `agent`. A cloned machine brings a copied state directory: remove it there.",
		},
		{
			"destination-taken", "file", "A key of a `for_each` names a file that exists and that the agent did not write.",
			"That file, as it is. The agent never replaces or removes it.",
			"Rename the key in ZooKeeper, or move the file away. `adopt = true` in the template takes such files over. Then `zkagent reload`.",
		},
		{
			"dns-not-listening", "address", "The agent cannot answer DNS queries at the address of `dns.listen`.",
			"Everything else. DNS clients get no answer.",
			"Another program has the port (`ss -lunp` and `ss -ltnp` name it), or the address is not of this host. Correct `dns.listen`, or end the other program. The agent tries again by itself.",
		},
		{
			"drift", "file", "Something other than the agent has changed the file, and the template says `drift = \"report\"`. Or another program changes it again and again.",
			"The changed file. With `drift = \"repair\"` the agent writes it again at once three times in a row, then after 1 to 30 minutes.",
			"If another program writes the file, such as a second agent, give each its own. Otherwise look at it with `zkagent render NAME --diff`. Take the change into the template, or write the file again with `zkagent render NAME`.",
		},
		{
			"files-not-watched", "directory", "The agent cannot watch the directory of settings or templates for changes.",
			"What was loaded last.",
			"After an edit run `zkagent reload`. The usual cause is the limit of inotify instances: raise `fs.inotify.max_user_instances`.",
		},
		{
			"group-empty", "template or bundle", "A group that the template uses has no members that are up, and neither `on_empty = \"render\"` nor an `{{ else }}` says what to write then.",
			"The file as it was, if there was one.",
			"Do nothing if the group is meant to be empty. Otherwise find out why no member is up: run `zkagent members`, and look at the hosts of the members. `on_empty = \"render\"` writes a file without members.",
		},
		{
			"guards-running", "", "Commands are still running that a former process of this agent started as leader.",
			"Leader-only hooks wait.",
			"Do nothing: they end by themselves, at the latest with their lease. `systemctl status zkagent` shows the processes.",
		},
		{
			"hook-clock", "hook", "The newest slot of the schedule that a host has run is ahead of this host's clock.",
			"The hook's other triggers.",
			"A clock is wrong: this host's, or that of the host that ran the slot. Correct it. If the slot is far ahead, delete the hook's ledger beside the election: the schedule then begins anew.",
		},
		{
			"hook-failed", "hook", "The newest run of the hook failed, and so did its retries.",
			"Other hooks, and all files.",
			"Read its output with `zkagent hooks log NAME`, and repair the cause. The condition closes when `zkagent hooks run NAME` succeeds.",
		},
		{
			"hook-ledger", "hook", "The agent cannot read or write the record of what the hook has done.",
			"The hook waits: otherwise it might do its work twice.",
			"The text has the cause. It is an ACL (for a leader-only hook, of the znode beside the election), or a state directory that is full or read-only.",
		},
		{
			"hook-schedule", "hook", "The agent cannot use the schedule of the hook.",
			"The hook's other triggers.",
			"Correct `schedule` in the settings; `zkagent validate` says what is wrong.",
		},
		{
			"hook-unknown", "hook", "The leader died while it ran a leader-only hook. Whether the hook finished is unknown.",
			"The agent does not run the hook again, because the settings do not call it idempotent.",
			"Find out whether its work was done. If not, run `zkagent hooks run NAME`. Set `idempotent = true` if running it twice does no harm.",
		},
		{
			"http-not-listening", "address", "The agent cannot serve the page, the metrics and the health checks at the address of `http.listen`.",
			"Everything else. After a reload, the former listener stays.",
			"Another program has the port (`ss -ltnp` names it), or the address is not of this host. Correct `http.listen`, or end the other program. The agent tries again by itself.",
		},
		{
			"identity-not-renewed", "", "The agent cannot renew its identity for ZooKeeper, such as a Kerberos ticket. The text has the reason.",
			"The present connection. New connections use the old ticket as long as it is valid.",
			"Do what the text says; docs/identity.md has a list. The agent tries again by itself.",
		},
		{
			"key-missing", "template or bundle", "A key that the template needs is not in its config.",
			"The file as it was, if there was one.",
			"`zkagent render NAME --diff` names the key and the line of the template. Publish the key. If it may be missing, use `keyOrDefault` or `keyExists` in the template.",
		},
		{
			"last-good-damaged", "", "The agent cannot read the newest saved view in the state directory.",
			"The one before it, if any.",
			"Do nothing if ZooKeeper answers: the agent saves a new view. If the condition comes back, look for a failing disk.",
		},
		{
			"last-good-not-saved", "", "The agent cannot save its view in the state directory.",
			"All files, which are up to date. A start without ZooKeeper would use an older view.",
			"Free space in `/var/lib/zkagent`, or correct its owner (`zkagent`) and mode.",
		},
		{
			"last-known-good", "", "ZooKeeper did not answer when the agent started. The agent uses the view that it saved before.",
			"Files of the saved view. The text has its time.",
			"Bring ZooKeeper back, or correct the servers in the settings. The condition closes when every source has answered.",
		},
		{
			"members-held", "group", "Many members of the group have vanished from ZooKeeper at once. The guard does not believe it yet.",
			"The group as it was, and new members.",
			"Run `zkagent members NAME --here`: do the members still answer? If they are gone, run `zkagent members accept NAME`. The guard accepts the loss by itself when `hold` is over and, with `probe = true`, when the members do not answer.",
		},
		{
			"recover-failed", "", "The agent cannot finish what a former process left half done: a swap of files, or a reload.",
			"The files as they are.",
			"The text names the file. Correct its directory's permissions or free space, then restart the agent.",
		},
		{
			"reload-failed", "template or bundle", "The newest run of the reload failed. The agent tries again.",
			"The new files. The service still has the old ones in memory.",
			"The text has the output of the command. Run it by hand to see more.",
		},
		{
			"reload-halted", "template or bundle", "Another host failed its rolling reload, so this host does not begin its own.",
			"The files and the service as they were before that version.",
			"The text names the host and the reason. Repair it or publish another version, then run `zkagent reload --clear-halt NAME`.",
		},
		{
			"reload-owed", "template or bundle", "New files are in place, and their reload has not succeeded yet.",
			"The new files. The service still has the old ones in memory.",
			"Run the reload by hand to see why it fails. The agent tries again, also after a restart.",
		},
		{
			"restore-failed", "template or bundle", "The reload failed, and the agent cannot put the old files back.",
			"New files, which the service has refused.",
			"Act now: the next restart of the service may fail. The text names the file; `backup` copies stand beside it.",
		},
		{
			"rollout-failed", "config", "This host refused a version of a rollout.",
			"The version before.",
			"The text has the output of the check or reload. Publish a corrected version, or `zkagent rollout rollback NAME`.",
		},
		{
			"rollouts-not-followed", "config", "The agent cannot take part in the rollouts of the config.",
			"The version that is in use.",
			"The usual cause is an ACL: agents must be able to create znodes below the config's `rollouts`. Rollouts wait for this host meanwhile.",
		},
		{
			"service-critical", "service", "A check of the service failed. Its member is out of ZooKeeper, or marked as down.",
			"The other members of the group.",
			"The text has the check and its last output. `zkagent status -o wide` shows every check of the service with its newest result.",
		},
		{
			"service-not-registered", "service", "The service has no member in ZooKeeper yet, or no more. The text says why.",
			"The other members of the group.",
			"While the checks have not passed, wait, or see them with `zkagent status -o wide`. If ZooKeeper refuses the znode, the text has its answer, and `zkagent doctor` compares the ACL with the identity of the agent. If the znode belongs to another session, it goes with that session.",
		},
		{
			"settings-invalid", "", "The agent refuses the newest settings or templates on disk.",
			"The settings before them.",
			"`zkagent validate` shows every error with file, line and column.",
		},
		{
			"source-unusable", "config, group or group of a set", "The newest state of a config tree or a group cannot be used: a key that may not be read, a digest that is wrong, more data than `max_bytes`. The text says which.",
			"The last good state. If there was none, nothing is rendered from it.",
			"Correct what the text names: the ACL of the key, the tree, or `max_bytes` in the block `config`, `group` or `groups`.",
		},
		{
			"state-dir", "directory", "The state directory cannot be used.",
			"No handoff, no saved view: a restart makes members blink.",
			"Create it, owned by the user of the agent, mode 0750; another agent must not use it. Then restart the agent.",
		},
		{
			"template-failed", "template or bundle", "The newest rendering, check, swap or reload failed.",
			"The last good files.",
			"`zkagent status -o wide` has the error with the line of the template, or the output of the check. `zkagent render NAME --diff` tries it by hand.",
		},
		{
			"unit-failed", "source", "A source (config, group, service, election) ended with an error. The agent starts it again, after growing pauses.",
			"Its last good state.",
			"The text has ZooKeeper's answer. If an ACL does not permit it, the text names the path: `zkagent doctor` compares the ACL with the identity of the agent.",
		},
		{
			"waiting-for-sources", "", "Some sources have not reported yet. The agent renders nothing until then.",
			"The files that were there before.",
			"The text names the sources. A config may lack its `ready` znode: publish the config, or set `layout = \"plain\"`. If the session is not connected, see `zkagent status`.",
		},
		{
			"zookeeper-read-only", "", "No server of the ensemble has a majority. The agent reads from one that is read-only.",
			"The data of that server, which may be old. The agent registers nothing and does not lead, and leader-only hooks do not run. Members stay if the majority comes back within their session timeout.",
			"Bring the quorum back. The agent goes on by itself.",
		},
		{
			"zookeeper-unreachable", "", "No server of the ensemble answers. The text has the newest reason.",
			"All files and the last view. Members stay for the session timeout.",
			"`zkagent doctor` asks each server by itself. Bring the quorum back, or correct the servers in the settings. The agent goes on by itself.",
		},
	}
}
