package fleet

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// plant is a fault that somebody could make, and the tests that find it.
type plant struct {
	what     string
	file     string // below the repository
	old, now string // text that occurs once, and what takes its place
	found    string // tests that find it; empty: 300 programs of TestSeeds
}

// plants are the faults that the protocol must not have.
var plants = []plant{
	{"start without check(gate)", "fleet/play.go", "h.put(ctx, r, h.checkGate())\n\tif err == nil && a.looked {\n\t\ta.begun = true", "h.put(ctx, r)\n\tif err == nil && a.looked {\n\t\ta.begun = true", ""},
	{"vote without check(gate)", "fleet/play.go", "if j.err == nil {\n\t\treturn h.put(ctx, r, h.checkGate())", "if j.err == nil {\n\t\treturn h.put(ctx, r)", ""},
	{"ticket without check(gate)", "fleet/play.go", "return h.put(ctx, HostRecord{State: HostWait, From: h.p.inUse}, h.checkGate())", "return h.put(ctx, HostRecord{State: HostWait, From: h.p.inUse})", ""},
	{"life without check(gate)", "fleet/play.go", "again, err := h.put(ctx, next, h.checkGate())", "again, err := h.put(ctx, next)", ""},
	{"a record of before the subscription was ours", "fleet/host.go", "case a.own != nil && !a.mine:", "case false:", "TestResume_RecordOfAnother"},
	{"votes meet at the leader", "fleet/play.go", "pause(ctx, h.voteDelay(a))", "_ = h.voteDelay", "TestVote_Spread$"},
	{"a refusal waits", "fleet/play.go", "if err == nil || a.Proposal.Dry { // a refusal", "if true { // a refusal", "TestVote_RefusalAtOnce"},
	{"a vote waits beyond its time", "fleet/play.go", "time.Duration(a.Proposal.Strategy.VoteTimeout)/2-time.Since(a.called)", "time.Hour", "TestVote_SpreadWithin"},
	{"a vote waits twice", "fleet/play.go", "if a.called.IsZero() || most <= 0", "if most = h.p.window(a.Proposal.Hosts); most <= 0", "TestVote_AtOnce"},
	{"four lives", "fleet/host.go", "const maxLives = 3", "const maxLives = 4", "TestResume"},
	{"a failure without its halt", "fleet/play.go", "with = append(with, h.setGate(halted))", "_ = halted", "TestRollout_NobodyStartsAfterAFailure"},
	{"a turn goes on while the rollout has halted", "fleet/play.go", "case a.gate.State != GateOpen:\n\t\treturn false, h.giveUp", "case a.gate.State == GateClosed:\n\t\treturn false, h.giveUp", ""},
	{"grant by who is deposed", "fleet/coordinator.go", "ops := []session.Op{c.term.Guard()}", "ops := []session.Op{session.CheckOp(c.root, -1)}", "TestCoordinator_Deposed"},
	{"grant without check(gate)", "fleet/coordinator.go", "ops = append(ops, session.CheckOp(gatePath(c.root, c.name), c.gateV))", "_ = c", ""},
	{"count from what was read alone", "fleet/coordinator.go", "c.take(id, r, c.records[id].version+1)", "_, _ = id, r", "TestCoordinator_OwnGrantsCount"},
	{"unknown grant forgotten", "fleet/coordinator.go", "return c.reread(ctx, sortedKeys(a.records), a.calls)", "return nil", "TestCoordinator_UnknownGrant"},
	{"unknown grant without sync", "fleet/coordinator_read.go", "if err := c.s.Sync(ctx, hostsPath(c.root, c.name)); err != nil {\n\t\treturn err\n\t}\n\tpaths", "paths", "TestCoordinator_UnknownGrant"},
	{"started counted without granted", "fleet/decide.go", "case r.State == HostGranted:\n\t\t\tplaces--", "case r.State == HostGranted:", ""},
	{"withdrawal at version -1", "fleet/coordinator.go", "encode(a.records[id]), c.records[id].version))", "encode(a.records[id]), -1))", "TestCoordinator_TakesBack"},
	{"lost slot freed", "fleet/decide.go", "case r.State == HostStarted:\n\t\t\tplaces--", "case r.State == HostStarted && !r.Lost:\n\t\t\tplaces--", "TestDecide"},
	{"lost without a look", "fleet/decide.go", "acts[i].confirm = true", "acts[i].confirm = false", "TestCoordinator_Absence"},
	{"no ticket while halted", "fleet/play.go", "case a.Proposal.Dry:\n\t\t\treturn false, nil\n\t\t}\n\t\treturn h.put", "case a.Proposal.Dry, a.gate.State == GateHalted:\n\t\t\treturn false, nil\n\t\t}\n\t\treturn h.put", ""},
	{"shard of late hosts never called", "fleet/decide_vote.go", "if len(ids) == 0 || sc.snapshots[shard] != nil {", "if len(ids) == 0 || sc.snapshots[shard] != nil || sc.gate.State != GateVoting {", ""},
	{"shard that was empty never called", "fleet/decide_vote.go", "if len(ids) == 0 || sc.snapshots[shard] != nil {", "if true || len(ids) == 0 || sc.snapshots[shard] != nil {", ""},
	{"refused replacement closed", "fleet/decide_vote.go", "if len(sc.proposal.Replaces) > 0 {\n\t\treturn nil, 0", "if len(sc.proposal.Replaces) > 99 {\n\t\treturn nil, 0", ""},
	{"replaced records compacted", "fleet/collect.go", "case !contains(needed[1:], name) && state.Proposal.Hosts > c.keep:", "case name == c.name:", "TestCompact_WhatStays"},
	{"records that the next rollout needed stay for ever", "fleet/collect.go", "case !contains(needed[1:], name) && state.Proposal.Hosts > c.keep:", "case name == c.name && !contains(needed[1:], name) && state.Proposal.Hosts > c.keep:", "TestCompact_Others"},
	{"failed record compacted", "fleet/collect.go", "if r.State == HostFailed || r.State == HostAbort && aborts <= keepAborts {", "if r.State == HostAbort && aborts <= keepAborts {", "TestCompact"},
	{"replaces ignored", "fleet/play_catchup.go", "for chunk := range slices.Chunk(h.act.Proposal.Replaces, 16) {", "for chunk := range slices.Chunk([]string(nil), 16) {", ""},
	{"what ready has left is replaced", "fleet/propose.go", "case o.proposal.Ready.Mzxid != p.proposal.Ready.Mzxid:", "case false:", ""},
	{"restart shows ready first", "fleet/host.go", "if h.ready == nil {\n\t\treturn nil\n\t}\n", "if h.ready == nil {\n\t\treturn nil\n\t}\n\tif h.p.inUse == 0 && h.job == nil {\n\t\tif err := h.show(ctx, h.ready.Generation); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n", ""},
	{"vote before the turn ends", "fleet/host.go", "if h.p.ended != nil || h.job != nil && h.job.kind != jobVote {\n\t\t\treturn\n\t\t}", "if h.job != nil && h.job.kind != jobVote {\n\t\t\th.job = nil\n\t\t}", ""},
	{"early adoption", "fleet/host.go", "if h.p.ended != nil || h.job != nil", "if h.job != nil", "TestReplace_InTheMiddle"},
	{"maintenance counts as caught up", "fleet/play_catchup.go", "a.caught = h.away == \"\"", "a.caught = true", "TestMaintenance_EndsWhileTheHostStarts"},
	{"stale ready taken for superseded", "fleet/host.go", "if current, err := h.current(ctx); err != nil || !current {\n\t\treturn false, err\n\t}", "if h.readyZxid != a.Proposal.Ready.Mzxid {\n\t\th.stopJob()\n\t\treturn false, h.follow(ctx)\n\t}", ""},
	{"stale ready is no reason to wait", "fleet/host.go", "if h.readyZxid >= h.act.Proposal.Ready.Mzxid {\n\t\treturn true, nil", "if true {\n\t\treturn true, nil", ""},
	{"emergency unchanged", "config/publish_versioned.go", "st.content.sum == m.sum && flip && !p.cfg.Emergency", "st.content.sum == m.sum && flip", ""},
	{"emergency closes what is closed", "config/rollouts.go", "if gate[\"state\"] == \"closed\" {", "if false {", "TestEmergency_"},
	{"proposal closes what is closed", "fleet/propose.go", "case gate.State == GateClosed:", "case false:", "TestPropose_"},
	{"emergency past the open rollout", "config/rollouts.go", "return []session.Op{session.SetOp(paths[1], data, read[1].Stat.Version), session.DeleteOp(CurrentPath(root), -1)}, nil", "_ = data\n\treturn []session.Op{session.CheckOp(CurrentPath(root), -1)}, nil", ""},
	{"one draw for canaries and candidates", "fleet/path.go", "[]byte(purpose + \"/\" + rollout", "[]byte(\"/\" + rollout", "TestCanariesDiffer"},
	{"absence of a named canary forgotten", "fleet/decide.go", "if sc.live[id] {\n\t\t\tdelete(sc.missing, id)", "if r.State != HostStarted || sc.live[id] {\n\t\t\tdelete(sc.missing, id)", "TestRollout_NamedCanary"},
	{"absent canaries pass", "fleet/decide_steps.go", "if done == 0 {", "if done < 0 {", "TestDecide"},
	{"a grant given anew keeps its old time", "fleet/coordinator_read.go", " && old.Gate == r.Gate {", " {", "TestCoordinator_GrantsAgain"},
	{"hung host granted forever", "fleet/decide.go", "if sc.withdrawn[id] > 0 {", "if false {", "TestTakeBack"},
	{"bake restarted by a new coordinator", "fleet/coordinator_read.go", "if first {\n\t\treturn c.datePast(ctx, newest)", "if false {\n\t\treturn c.datePast(ctx, newest)", "TestCoordinator_ClockJumps"},
	{"bake cut by a clock jump", "fleet/coordinator_read.go", "if r.Err != nil || r.Stat.Mzxid > c.zkZxid {", "if r.Err != nil {", "TestCoordinator_ClockJumps"},
	{"bake cut by the time of a look", "fleet/coordinator_read.go", "since: time.Now()}", "since: c.looked}", "TestCoordinator_WhatItReads"},
	{"commit without the gate's version", "fleet/coordinator.go", "encode(a.gate.after(c.gate, c.gateAt)), c.gateV))", "encode(a.gate.after(c.gate, c.gateAt)), -1))", ""},
	{"commit without check(ready)", "fleet/coordinator.go", "case a.checkReady:", "case false:", ""},
	{"commit while frozen", "fleet/coordinator.go", "if a.unfrozen {", "if false {", ""},
	{"propose while frozen", "fleet/propose.go", "if !p.r.Dry {\n\t\tops", "if false {\n\t\tops", "TestPropose_Something"},
	{"propose without check(ready)", "fleet/propose.go", "session.CheckOp(config.ReadyPath(root), p.proposal.Ready.Version),\n", "", "TestPropose_Something"},
	{"propose a version that is gone", "fleet/propose.go", "session.CheckOp(config.VersionPath(root, p.proposal.Version), -1),\n", "", "TestPropose_Something"},
	{"proposal does not stop a collection", "fleet/propose.go", "session.SetOp(config.VersionsPath(root), nil, -1), // a garbage collection that runs starts over\n", "", "TestPropose_Stops"},
	{"collection without check(ready)", "config/gc.go", "[]string{VersionsPath(g.root), readyPath(g.root)}", "[]string{VersionsPath(g.root)}", "TestGC_StartsOver"},
	{"collection without check(versions)", "config/gc.go", "[]string{VersionsPath(g.root), readyPath(g.root)}", "[]string{readyPath(g.root)}", "TestGC_StartsOver"},
	{"collection takes objects first", "config/gc.go", "paths[i] = versionPath(g.root, n)\n\t\t}\n", "paths[i] = versionPath(g.root, n)\n\t\t}\n\t\tif err = g.sweepObjects(ctx, live); err != nil {\n\t\t\treturn err\n\t\t}\n", "TestGC_Dies"},
	{"collection forgets the open rollout", "config/gc.go", "for _, name := range []string{string(open), r.Rollout} {", "for _, name := range []string{string(open[:0]), r.Rollout} {", "TestGC_Dies"},
	{"collection forgets subscribers", "config/gc.go", "needed[a.Version] = true", "_ = a", "TestVersioned_GC"},
	{"publish without absent(current)", "config/rollouts.go", "return Absent(CurrentPath(root)), nil", "return nil, nil", "TestPublish_Meets"},
	{"publish while frozen", "config/flip.go", "Absent(freezePath(root)), rollout", "[]session.Op{}, rollout", "TestVersioned_FreezeGuards"},
	{"root of a difference not computed", "config/delta.go", "if next.sum != want {", "if false {", "TestDelta_|TestVersioned_WrongDiff"},
	{"a late candidate leaves a dry run behind", "fleet/dry.go", "for range maxTries {\n\t\tif err := forgetRollout", "for range 1 {\n\t\tif err := forgetRollout", "TestDry_Candidate"},
	{"what a late candidate makes stays", "fleet/collect.go", "case err != nil:\n\t\t\terr = forgetRollout(ctx, c.s, c.root, name)", "case err != nil:\n\t\t\terr = nil", "TestCollect_"},
	{"the past of a gate is lost", "fleet/record.go", "g.Past = config.AddPast(was.Past, was.caused(at))", "_ = at", "TestGate_"},
	{"the past of a gate is lost by a publish", "config/rollouts.go", "AddPast(was.Past, was.GateState)", "[]GateState{}", "TestDry_EndedByAPublish"},
	{"a refusal forgets who paused", "fleet/play.go", "if j.err != nil && !a.read && a.gateV > 0 {", "if false {", "TestGate_"},
	{"a failure signed by the operator before it", "fleet/play.go", "GateHalted, h.p.cfg.Agent, r.Error, \"\"", "GateHalted, h.p.cfg.Agent, r.Error, halted.By", "TestGate_"},
	{"a wave signed by the operator before it", "fleet/decide_steps.go", "g.Wave, g.By, g.Reason = WaveAll, sc.agent, \"\"", "g.Wave = WaveAll", "TestGate_"},
	{"a dry run opens", "fleet/decide_vote.go", "if sc.proposal.Dry {\n\t\treturn []act{sc.close(ResultPlanned", "if false {\n\t\treturn []act{sc.close(ResultPlanned", "TestDry_"},
	{"an abort ends a dry run", "fleet/play.go", "if a.Proposal.Dry {\n\t\treturn h.put(ctx, r, h.checkGate())", "if false {\n\t\treturn h.put(ctx, r, h.checkGate())", "TestDry_"},
	{"a silent host aborts a dry run", "fleet/decide_vote.go", "strategy.Absent != AbsentSkip && !sc.proposal.Dry", "strategy.Absent != AbsentSkip", "TestDry_"},
	{"a proposal does not end a dry run", "fleet/propose.go", "case proposal.Dry && !p.r.Dry:", "case proposal.Dry && p.r.Dry:", "TestDry_"},
	{"a publish does not end a dry run", "config/rollouts.go", "if !proposal.Dry && !emergency {", "if !emergency {", "TestDry_EndedByAPublish"},
	{"every host sends its diff", "fleet/play.go", "*float64(a.Proposal.Hosts) < maxSamples", "*float64(a.Proposal.Hosts) >= 0", "TestDry_"},
	{"the files of a dry run are not bounded", "fleet/play.go", "r.Files, r.More = boundFiles(r.Files)", "_ = boundFiles", "TestDry_EverybodyAnswers|TestDry_ManyFiles"},
	{"a host waits for a turn in a dry run", "fleet/play.go", "case a.Proposal.Dry:\n\t\t\treturn false, nil", "case false:\n\t\t\treturn false, nil", "TestDry_"},
	{"the version in use is deleted with a dry run", "fleet/dry.go", "if ready.Version == version || ready.Previous == version {", "if false {", "TestDry_"},
	{"the version of a dry run stays", "fleet/dry.go", "if err := deleteVersion(ctx, s, root, version); err != nil", "if err := error(nil); err != nil", "TestDry_"},
	{"a dry run is refused while frozen", "fleet/propose.go", "if !p.r.Dry {\n\t\tops", "if true {\n\t\tops", "TestDry_"},
	{"a dry run that nobody reads stays", "fleet/dry.go", "case <-timer.C:\n\t\treturn forgetDry", "case <-timer.C:\n\t\treturn nil\n\t\treturn forgetDry", "TestDry_"},
	{"a dry run is deleted before it can be read", "fleet/dry.go", "time.NewTimer(dryLinger)", "time.NewTimer(0)", "TestDry_"},
	{"dry runs are among the rollouts", "fleet/read.go", "{ _, ok := rolloutNumber(c); return !ok }", "{ return c == \"shards\" || c == \"current\" }", "TestDry_"},
}

// byPrograms are the faults with tests of their own that the 300 programs find, too.
var byPrograms = []string{
	"withdrawal at version -1", "replaced records compacted", "lost slot freed", "absent canaries pass", "bake restarted by a new coordinator",
	"collection takes objects first", "root of a difference not computed", "proposal does not stop a collection",
}

// TestPlants plants each of the faults in a copy of the program and looks that the
// tests find it. It takes half an hour of one processor, so it runs only with
// PLANTED=all, or PLANTED=RE for the faults whose names match. Every run of the tests
// looks that the faults can still be planted.
func TestPlants(t *testing.T) {
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	pick := os.Getenv("PLANTED")
	if pick == "all" {
		pick = "."
	}
	for _, p := range plants {
		t.Run(p.what, func(t *testing.T) {
			file := filepath.Join(repository, filepath.FromSlash(p.file))
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(text, []byte(p.old)); n != 1 {
				t.Fatalf("%s has this %d times: %s", p.file, n, p.old)
			}
			if pick != "" && regexp.MustCompile(pick).MatchString(p.what) {
				p.run(t, file, string(text))
			}
		})
	}
}

// run runs the tests with the fault.
func (p plant) run(t *testing.T, file, text string) {
	dir := t.TempDir()
	planted, overlay, program := filepath.Join(dir, "planted.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "planted.test")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: planted}})
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{planted: strings.Replace(text, p.old, p.now, 1), overlay: string(replace)} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if p.found != "" {
		p.test(t, p.found, overlay, program)
	}
	if p.found == "" || slices.Contains(byPrograms, p.what) {
		p.test(t, "TestSeeds", overlay, program)
	}
}

// test runs some tests with the fault, until one finds it.
func (p plant) test(t *testing.T, tests, overlay, program string) {
	t.Helper()
	for _, where := range []string{".", "../config"} {
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program, where)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("it does not compile: %s", out)
		}
		run := exec.CommandContext(t.Context(), program, "-test.run", "^("+tests+")", "-test.failfast", "-test.timeout", "10m")
		run.Dir = where
		run.Env = append(os.Environ(), "SEEDS=300", "PLANTED=", "SEED=")
		if out, err := run.CombinedOutput(); err != nil {
			first := regexp.MustCompile(`(?m)^ +(--- FAIL: .*|[a-z_]+_test\.go:.*)|^panic:.*|^--- FAIL: .*`).FindAll(out, 3)
			t.Logf("found: %.600s", bytes.Join(first, []byte("\n")))
			return
		}
		if tests == "TestSeeds" {
			break // the programs are those of this package
		}
	}
	t.Errorf("no test finds it: %s", tests)
}
