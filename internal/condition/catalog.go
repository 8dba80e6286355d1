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

// tellOutput are the codes whose text may have the output of a command, or values
// of a template.
var tellOutput = []string{
	"hook-failed", "hook-unknown", "reload-failed", "reload-halted", "reload-owed", "restore-failed", "rollout-failed", "service-critical", "template-failed",
}

// TellsOutput reports whether the text may have what is not for everybody.
func (c Condition) TellsOutput() bool { return slices.Contains(tellOutput, c.Code) }

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
			"agent-id-taken", "", "Another agent of the fleet has the id of this one. Both tell it.",
			"The agent that came first has the record of the host. Members and candidates of both stay.",
			"Give each agent an `id` of its own in the block `agent`. A cloned machine brings a copied state directory: remove it there.",
		},
		{
			"destination-taken", "file", "A key of a `for_each` names a file that exists and that the agent did not write.",
			"That file, as it is. The agent never replaces or removes it.",
			"Rename the key in ZooKeeper, or move the file away. `adopt = true` in the template takes such files over. Then `zkagent reload`.",
		},
		{
			"dns-not-listening", "address", "DNS queries cannot be answered at the address of `dns.listen`.",
			"Everything else; programs that ask get no answer.",
			"Another program has the port (`ss -lunp` and `ss -ltnp` name it), or the address is not of this host. Correct `dns.listen`, or end the other program: it is tried again by itself.",
		},
		{
			"drift", "file", "Something other than the agent has changed the file, and the template says `drift = \"report\"`.",
			"The changed file.",
			"Look at it with `zkagent render NAME --diff`. Take the change into the template, or write the file again with `zkagent render NAME`.",
		},
		{
			"files-not-watched", "directory", "The directory of settings or templates cannot be watched for changes.",
			"What was loaded last.",
			"Edits need `zkagent reload` until it closes. Often the limit of inotify instances is reached: raise `fs.inotify.max_user_instances`.",
		},
		{
			"group-empty", "template or bundle", "A group that the template uses has no members that are up, and neither `on_empty = \"render\"` nor an `{{ else }}` says what to write then.",
			"The file as it was; none, if there was none.",
			"Nothing, if nobody is meant to be there. Else look why nobody is up, with `zkagent members` and on the hosts of the members. `on_empty = \"render\"` writes a file without members.",
		},
		{
			"guards-running", "", "Commands that a former process of this agent started as leader are still running.",
			"Leader-only hooks wait.",
			"Nothing: they end by themselves, at the latest with their lease. `systemctl status zkagent` shows the processes.",
		},
		{
			"hook-clock", "hook", "The last slot of the schedule that was run is ahead of this host's clock.",
			"The hook's other triggers.",
			"One clock is wrong, of this host or of the one that ran the slot. Correct it; when the slot is far ahead, delete the hook's ledger beside the election, and the schedule begins anew.",
		},
		{
			"hook-failed", "hook", "The newest run of the hook failed, after its retries.",
			"Other hooks and all files are not affected.",
			"Read its output with `zkagent hooks log NAME`; repair the cause; `zkagent hooks run NAME` closes it when it succeeds.",
		},
		{
			"hook-ledger", "hook", "The record of what the hook has done can not be read or written.",
			"The hook waits, so that nothing is done twice.",
			"The text has the cause: an ACL (for a leader-only hook the znode beside the election), or a state directory that is full or read-only.",
		},
		{
			"hook-schedule", "hook", "The schedule of the hook cannot be used.",
			"The hook's other triggers.",
			"Correct `schedule` in the settings; `zkagent validate` says what is wrong.",
		},
		{
			"hook-unknown", "hook", "A run of a leader-only hook was started, and its end is not known: the leader died in between.",
			"It is not run again, because the hook is not declared idempotent.",
			"Look whether its work was done, and run it by `zkagent hooks run NAME` if not. Set `idempotent = true` when running it twice does no harm.",
		},
		{
			"http-not-listening", "address", "The page, the metrics and the health checks cannot be served at the address of `http.listen`.",
			"Everything else; after a reload also the listener that was there before.",
			"Another program has the port (`ss -ltnp` names it), or the address is not of this host. Correct `http.listen`, or end the other program: it is tried again by itself.",
		},
		{
			"identity-not-renewed", "", "The identity to ZooKeeper, such as a Kerberos ticket, could not be renewed; the text has the reason.",
			"The connection that there is, and the old ticket for new ones as long as it is valid.",
			"The text names what mends it; docs/identity.md has a list. It is tried again by itself.",
		},
		{
			"key-missing", "template or bundle", "A key that the template needs is not in its config.",
			"The file as it was; none, if there was none.",
			"Publish the key, or ask for it with `keyOrDefault` or `keyExists` where it may be missing.",
		},
		{
			"last-good-damaged", "", "The newest saved view in the state directory cannot be read.",
			"The one before it, if any.",
			"Nothing, once ZooKeeper can be reached: it is written anew. If it comes back, look for a failing disk.",
		},
		{
			"last-good-not-saved", "", "The view could not be saved in the state directory.",
			"Files are up to date; only a start without ZooKeeper would use an older view.",
			"Free space in `/var/lib/zkagent`, or correct its owner (`zkagent`) and mode.",
		},
		{
			"last-known-good", "", "The agent was started without an answer from ZooKeeper and runs from the view that it saved before.",
			"Files of the saved view; its time is in the text.",
			"Bring ZooKeeper back, or correct the servers in the settings. It closes when every source has answered.",
		},
		{
			"members-held", "group", "Many members of the group have vanished from ZooKeeper at once, which the guard does not believe.",
			"The group as it was; members that come meanwhile are added.",
			"Look at them with `zkagent members NAME --here`: do they still answer? `zkagent members accept NAME` believes the loss; it is believed by itself when `hold` is over, and with `probe = true` when they cannot be reached.",
		},
		{
			"recover-failed", "", "What a former process left half done (a swap of files, a reload that was owed) could not be put in order.",
			"The files as they are.",
			"The text names the file. Correct its directory's permissions or free space, then restart the agent.",
		},
		{
			"reload-failed", "template or bundle", "The newest run of the reload has failed; it is tried again.",
			"The new files; the service still has the old ones in memory.",
			"The text has the words of the command. Run it by hand to see more.",
		},
		{
			"reload-halted", "template or bundle", "Another host failed its rolling reload, so this host does not begin its own.",
			"The files and the service as they were before that version.",
			"The text names the host and the reason. Repair it or publish another version, then run `zkagent reload --clear-halt BUNDLE`.",
		},
		{
			"reload-owed", "template or bundle", "New files are in place, and the reload that belongs to them has not succeeded yet.",
			"The new files; the service still has the old ones in memory.",
			"Run the reload by hand to see why it fails. The agent tries again, also after a restart.",
		},
		{
			"restore-failed", "template or bundle", "The reload failed, and the old files could not be put back.",
			"New files, which the service has refused.",
			"Act now: the next restart of the service may fail. The text names the file; `backup` copies stand beside it.",
		},
		{
			"rollout-failed", "config", "This host refused a version that a rollout brought.",
			"The version before.",
			"The text has the words of the check or reload. Publish a corrected version, or `zkagent rollout rollback NAME`.",
		},
		{
			"rollouts-not-followed", "config", "The agent cannot take part in the rollouts of the config.",
			"The version that is in use.",
			"Usually an ACL: agents need to create below the config's `rollouts`. Rollouts wait for this host until then.",
		},
		{
			"service-critical", "service", "A check of the service has failed, so that its member is out of ZooKeeper, or marked as down.",
			"The other members of the group.",
			"The text has the check and its last words. `zkagent status -o wide` shows every check of the service with its newest result.",
		},
		{
			"service-not-registered", "service", "The service is well, and its member is not in ZooKeeper.",
			"The other members of the group.",
			"The text has ZooKeeper's answer. A refusal names the path: `zkagent doctor` compares its ACL with the identity of the agent. A znode of another session goes with that session.",
		},
		{
			"settings-invalid", "", "The newest settings or templates on disk are refused.",
			"The settings before them.",
			"`zkagent validate` shows every error with file, line and column.",
		},
		{
			"source-unusable", "config, group or group of a set", "The newest state of a config tree or a group cannot be used: a key that may not be read, a digest that is wrong, more data than `max_bytes`. The text says which.",
			"The last good state. Nothing is rendered from it where there was none yet.",
			"Correct what the text names: the ACL of the key, the tree, or `max_bytes` in the block `config`, `group` or `groups`.",
		},
		{
			"state-dir", "directory", "The state directory cannot be used.",
			"No handoff, no saved view: a restart makes members blink.",
			"Create it, owned by the user of the agent, mode 0750; another agent must not use it.",
		},
		{
			"template-failed", "template or bundle", "The newest rendering, check, swap or reload failed.",
			"The last good files.",
			"`zkagent status -o wide` has the error with the line of the template, or the words of the check. `zkagent render NAME --diff` tries it by hand.",
		},
		{
			"unit-failed", "source", "A source (config, group, service, election) ended with an error; it is run again with back-off.",
			"Its last good state.",
			"The text has ZooKeeper's answer. `znode does not exist` and `not authorized` name the path.",
		},
		{
			"waiting-for-sources", "", "Some sources have not reported yet, so that nothing is rendered.",
			"The files that were there before.",
			"The text names the sources. A config waits for its `ready` znode: publish it, or set `layout = \"plain\"`; a session that is not connected: see `zkagent status`.",
		},
		{
			"zookeeper-read-only", "", "No server of the ensemble has a majority; the agent reads from one that is read-only.",
			"What that server has, which may be old. Nothing is registered or led, and hooks of leaders do not run. Members stay when the majority comes back within their timeout of it.",
			"Bring the quorum back; the agent goes on by itself.",
		},
		{
			"zookeeper-unreachable", "", "No server of the ensemble answers; the text has the newest reason.",
			"All files and the last view. Members stay for the session timeout.",
			"`zkagent doctor` asks each server by itself. Bring the quorum back, or correct the servers in the settings; the agent goes on by itself.",
		},
	}
}
