package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/zktest/memzk"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// A publisher goes back as it goes forward: by a new version.
func ExampleRollback() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx := context.Background()
	s, err := session.Dial(ctx, session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	site := fleet.PublishConfig{Path: "/config/site", Author: "me"}
	for _, color := range []string{"blue", "green"} {
		site.Keys, site.Message = map[string][]byte{"color": []byte(color)}, "it is "+color
		if _, err = fleet.Publish(ctx, s, site); err != nil {
			panic(err)
		}
	}
	site.Message = "it was not the color"
	if _, err = fleet.Rollback(ctx, s, site, 0); err != nil {
		panic(err)
	}
	versions, err := config.History(ctx, s, "/config/site")
	if err != nil {
		panic(err)
	}
	for _, v := range versions {
		fmt.Printf("version %d, active %t, rollback of %d: %s\n", v.Number, v.Active, v.RollbackOf, v.Message)
	}
	// Output:
	// version 3, active true, rollback of 1: it was not the color
	// version 2, active false, rollback of 0: it is green
	// version 1, active false, rollback of 0: it is blue
}

// An agent reports about itself, and everybody reads all hosts.
func ExampleAnnouncer() {
	server := memzk.New(memzk.Options{})
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	s, err := session.Dial(ctx, session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	announcer := fleet.NewAnnouncer(fleet.AnnouncerConfig{
		ID: "web-1", Host: "web-1.example.org",
		Record: func() fleet.Record { return fleet.Record{Version: "1.2.3", Health: "ok"} },
		Health: func() fleet.Health { return "ok" },
	})
	ended := make(chan error, 1)
	go func() { ended <- announcer.Run(ctx, s) }()
	if _, written, watch, err := s.ExistsW(ctx, fleet.AgentPath("web-1")); err == nil && !written {
		<-watch.C()
	}
	var hosts []fleet.HostStatus
	if hosts, err = fleet.Agents(ctx, s); err != nil {
		panic(err)
	}
	fmt.Println(hosts[0].ID, hosts[0].Version, hosts[0].Health)
	stop()
	fmt.Println(<-ended)
	// Output:
	// web-1 1.2.3 ok
	// <nil>
}

// open opens a session with a ZooKeeper in memory, and publishes a config there.
func open() (*session.Session, fleet.PublishConfig, func()) {
	server := memzk.New(memzk.Options{})
	s, err := session.Dial(context.Background(), session.Config{Servers: []string{"localhost:2181"}, Dial: server.Dial})
	if err != nil {
		panic(err)
	}
	site := fleet.PublishConfig{Path: "/config/site", Author: "Ann", Keys: map[string][]byte{"color": []byte("blue"), "size": []byte("7")}}
	if _, err := fleet.Publish(context.Background(), s, site); err != nil {
		panic(err)
	}
	return s, site, func() { _ = s.Close(); server.Close() }
}

// webHost is a host whose file /etc/web/color has one of some colors.
type webHost struct {
	subscriber *fleet.Subscriber
	colors     []string
}

func (h *webHost) Vote(_ context.Context, tree *view.Tree) error {
	if color, _ := tree.Get("color"); !slices.Contains(h.colors, string(color.Value)) {
		return fmt.Errorf("no such color: %s", color.Value)
	}
	return nil
}

func (h *webHost) Plan(ctx context.Context, tree *view.Tree, _ bool) ([]fleet.FileChange, error) {
	return []fleet.FileChange{{Path: "/etc/web/color", Added: 1, Removed: 1}}, h.Vote(ctx, tree)
}

func (h *webHost) Show(tree *view.Tree) { h.subscriber.Report(tree.Generation, fleet.StateOK, nil) }

func (h *webHost) Use(_ context.Context, tree, _ *view.Tree) error {
	h.Show(tree) // after it has written the file
	return nil
}

func (h *webHost) Back(_ context.Context, tree *view.Tree) error {
	h.Show(tree)
	return nil
}

// join makes a host take part in the rollouts of a config until leave is called.
func join(ctx context.Context, s *session.Session, root, id string, colors ...string) (leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	watcher := config.NewWatcher(config.Config{Path: root})
	subscriber := fleet.NewSubscriber(fleet.SubscriberConfig{Path: root, ID: id})
	participant := fleet.New(fleet.Config{
		Root: root, Agent: id, Host: &webHost{subscriber, colors}, Owned: subscriber.Owned,
		Tree: func(ctx context.Context, s *session.Session, v fleet.Version) (*view.Tree, error) {
			return watcher.ReadVersion(ctx, s, v.Number)
		},
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = subscriber.Run(ctx, s) })
	wg.Go(func() { _ = participant.Run(ctx, s) })
	wg.Go(func() { _ = watcher.Run(ctx, s, func(u view.Update) { participant.Offer(u.(*view.Tree)) }) })
	for owned, changed := subscriber.Owned(); !owned; owned, _ = subscriber.Owned() {
		<-changed
	}
	return func() { cancel(); wg.Wait() }
}

// subscribe makes an agent a subscriber of a config until leave is called.
func subscribe(ctx context.Context, s *session.Session, root, id string) (leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	subscriber := fleet.NewSubscriber(fleet.SubscriberConfig{Path: root, ID: id})
	subscriber.Report(1, fleet.StateOK, nil)
	ended := make(chan error, 1)
	go func() { ended <- subscriber.Run(ctx, s) }()
	for owned, changed := subscriber.Owned(); !owned; owned, _ = subscriber.Owned() {
		<-changed
	}
	return func() { cancel(); <-ended }
}

// A host takes part in rollouts: it votes on the version, and puts it into use when its turn comes. Function join shows
// what a host needs; type webHost implements fleet.Host.
func ExampleParticipant() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	leave := join(ctx, s, site.Path, "web-1", "blue", "green")
	defer leave()

	site.Keys["color"], site.Message = []byte("green"), "spring"
	follow := func(rollout fleet.Proposed) error {
		fmt.Printf("version %d: %d host votes\n", rollout.Version, rollout.Hosts)
		return fleet.Watch(ctx, s, site.Path, rollout.Rollout, func(state *fleet.State) bool {
			if !fleet.Over(state.Phase()) {
				return true
			}
			fmt.Println(state.Phase(), state.Counts().Done, state.Turn("web-1"), state.Err())
			return false
		})
	}
	rollout, err := fleet.PublishByRollout(ctx, s, site, fleet.RolloutConfig{})
	if err == nil {
		err = follow(rollout)
	}
	fmt.Println(err)
	// Output:
	// version 2: 1 host votes
	// done 1 done <nil>
	// <nil>
}

// A rollout waits for the votes of all hosts. Meanwhile an operator pauses it, and gives it up.
func ExampleOrder() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	leave := subscribe(ctx, s, site.Path, "web-1")
	defer leave()
	site.Keys["color"] = []byte("green")
	rollout, err := fleet.PublishByRollout(ctx, s, site, fleet.RolloutConfig{})
	if err != nil {
		panic(err)
	}
	order := fleet.Order{By: "Bob", Reason: "wait for Monday"}
	fmt.Println("paused:", fleet.Pause(ctx, s, site.Path, rollout.Rollout, order))
	state, err := fleet.Read(ctx, s, site.Path, rollout.Rollout)
	if err != nil {
		panic(err)
	}
	fmt.Println(state.Phase(), state.Called, state.Waiting(time.Now()).Text)
	fmt.Println("ended:", fleet.Abort(ctx, s, site.Path, rollout.Rollout, order))
	state, err = fleet.Head(ctx, s, site.Path, rollout.Rollout)
	fmt.Println(state.Phase(), errors.Is(state.Err(), fleet.ErrAborted), err)
	// Output:
	// paused: <nil>
	// paused [web-1] paused by Bob: wait for Monday
	// ended: <nil>
	// aborted true <nil>
}

// A subscriber shows which version its agent uses.
func ExampleSubscriber() {
	s, site, end := open()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	web := fleet.NewSubscriber(fleet.SubscriberConfig{Path: site.Path, ID: "web-1"})
	web.Report(1, fleet.StateFailed, errors.New("reload: no such color"))
	ended := make(chan error, 1)
	go func() { ended <- web.Run(ctx, s) }()
	for owned, changed := web.Owned(); !owned; owned, _ = web.Owned() {
		<-changed
	}
	var failed []fleet.Subscription
	all, err := fleet.Subscribers(ctx, s, site.Path)
	for _, agent := range all {
		if agent.State != fleet.StateOK {
			failed = append(failed, agent)
		}
	}
	fmt.Println(failed, err)
	stop()
	<-ended
	// Output: [{web-1 1 failed reload: no such color}] <nil>
}

// A dry run asks every host which of its files the keys would change. No host uses them.
func ExampleAnswers() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	for id, colors := range map[string][]string{"web-1": {"blue", "green"}, "web-2": {"blue"}} {
		leave := join(ctx, s, site.Path, id, colors...)
		defer leave()
	}
	site.Keys["color"] = []byte("green")
	answers, err := fleet.DryRun(ctx, s, site, time.Minute)
	if err != nil {
		panic(err)
	}
	change := func(c fleet.AnsweredChange) { fmt.Printf("%s +%d -%d on %s\n", c.Path, c.Added, c.Removed, c.Hosts) }
	refusal := func(a fleet.HostAnswer) { fmt.Println(a.Host, "refuses:", a.Reason) }
	for _, c := range answers.Changes {
		change(c)
	}
	for _, a := range answers.Refused {
		refusal(a)
	}
	// Output:
	// /etc/web/color +1 -1 on [web-1]
	// web-2 refuses: no such color: green
}

// A host that can say which files a version would change takes part in dry runs.
func ExamplePlanner() {
	var planner fleet.Planner = &webHost{colors: []string{"blue", "green"}}
	changes := map[string][]fleet.FileChange{}
	for _, color := range []string{"green", "pink"} {
		tree := view.TreeOf("site", "/config/site", map[string]string{"color": color})
		files, err := planner.Plan(context.Background(), tree, false)
		if err != nil {
			fmt.Println(err)
			continue
		}
		changes[color] = files
	}
	fmt.Println(len(changes), changes["green"][0].Path)
	// Output:
	// no such color: pink
	// 1 /etc/web/color
}

// A host checks a proposed version and votes. It changes nothing until its turn.
func ExampleHost() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	part := fleet.Config{
		Root: site.Path, Agent: "web-1", Host: fleet.Host(&webHost{colors: []string{"green"}}),
		Tree: func(ctx context.Context, s *session.Session, v fleet.Version) (*view.Tree, error) {
			return config.ReadVersion(ctx, s, site.Path, v.Number)
		},
	}
	tree, err := part.Tree(ctx, s, fleet.Version{Number: 1})
	if err != nil {
		panic(err)
	}
	fmt.Println("abort:", part.Host.Vote(ctx, tree))
	// Output: abort: no such color: blue
}

// A plan shows what a publish would do, and the publish takes place only if nobody was faster.
func ExamplePlan() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	site.Keys = map[string][]byte{"color": []byte("green")}
	plan, err := fleet.NewPlan(ctx, s, site)
	if err != nil {
		panic(err)
	}
	for _, change := range plan.Changes {
		fmt.Println(change.Key, change.Kind)
	}
	fmt.Printf("version %d -> %d, refused: %v\n", plan.From, plan.Next, plan.Refused)
	site.Check = &plan.From
	result, err := fleet.Publish(ctx, s, site)
	fmt.Println(result.Version, result.Count, "key", err)
	// Output:
	// color changed
	// size removed
	// version 1 -> 2, refused: <nil>
	// 2 1 key <nil>
}

// Edit never loses the change of another publisher. Its result has the difference.
func ExampleResult() {
	s, site, end := open()
	defer end()
	result, err := fleet.Edit(context.Background(), s, fleet.PublishConfig{Path: site.Path}, func(keys map[string][]byte) error {
		keys["color"] = []byte("green")
		return nil
	})
	if err != nil {
		panic(err)
	}
	fmt.Printf("version %d after %d, %d keys\n", result.Version, result.Previous, result.Count)
	for _, change := range result.Changes {
		fmt.Printf("%s: %s -> %s\n", change.Key, change.Old, change.New)
	}
	// Output:
	// version 2 after 1, 2 keys
	// color: blue -> green
}

// Another publisher was faster: the error has the version in use.
func ExampleConflictError() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	site.Check, site.Keys = new(int64(1)), map[string][]byte{"color": []byte("green")}
	_, err := fleet.Publish(ctx, s, site)
	fmt.Println("mine:", err)
	site.Keys = map[string][]byte{"color": []byte("red")}
	_, err = fleet.Publish(ctx, s, site)
	if conflict, ok := errors.AsType[*fleet.ConflictError](err); ok {
		fmt.Printf("wanted %d, have %d: %t\n", conflict.Want, conflict.Have, errors.Is(err, fleet.ErrConflict))
	}
	// Output:
	// mine: <nil>
	// wanted 1, have 2: true
}

// A freeze forbids changes until somebody ends it.
func ExampleFrozenError() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	if err := fleet.Freeze(ctx, s, site.Path, "Ann", "inventory"); err != nil {
		panic(err)
	}
	site.Keys["color"] = []byte("green")
	_, err := fleet.Publish(ctx, s, site)
	if frozen, ok := errors.AsType[*fleet.FrozenError](err); ok {
		fmt.Println("frozen by", frozen.By, "for", frozen.Reason)
	}
	ended, err := fleet.Unfreeze(ctx, s, site.Path, "Bob")
	fmt.Println(ended, err)
	_, err = fleet.Publish(ctx, s, site)
	fmt.Println("published:", err)
	// Output:
	// frozen by Ann for inventory
	// true <nil>
	// published: <nil>
}

// The freezes of the past tell who forbade changes, and who allowed them again.
func ExamplePastFreeze() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	_ = fleet.Freeze(ctx, s, site.Path, "Ann", "inventory")
	_, _ = fleet.Unfreeze(ctx, s, site.Path, "Bob")
	freezes, err := fleet.PastFreezes(ctx, s, site.Path)
	if err != nil || len(freezes) == 0 {
		panic(err)
	}
	last := freezes[len(freezes)-1]
	fmt.Printf("%s: from %s, ended by %s\n", last.Reason, last.By, last.EndedBy)
	// Output: inventory: from Ann, ended by Bob
}

// A deleted config can be restored.
func ExampleDeleted() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	if _, err := fleet.Delete(ctx, s, site.Path, "Ann", "not used any more"); err != nil {
		panic(err)
	}
	_, err := config.Read(ctx, s, site.Path)
	fmt.Println("gone:", errors.Is(err, config.ErrNotReady))
	deleted, err := fleet.InTrash(ctx, s, site.Path)
	fmt.Println(deleted.Version, deleted.By, deleted.Reason, err)
	_, err = fleet.Restore(ctx, s, site.Path, "Bob")
	fmt.Println("restored:", err)
	// Output:
	// gone: true
	// 1 Ann not used any more <nil>
	// restored: <nil>
}

// Garbage collection keeps the latest versions and all that somebody uses.
func ExampleCollected() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	for _, color := range []string{"green", "red", "black"} {
		site.Keys["color"] = []byte(color)
		if _, err := fleet.Publish(ctx, s, site); err != nil {
			panic(err)
		}
	}
	collected, err := fleet.GC(ctx, s, site.Path, 1, slog.New(slog.DiscardHandler))
	fmt.Println("deleted versions", collected.Versions, err)
	versions, err := config.History(ctx, s, site.Path)
	fmt.Println("kept:", len(versions), err)
	// Output:
	// deleted versions [1 2] <nil>
	// kept: 2 <nil>
}

// A strategy in words of an operator: a tenth of the hosts at a time, after two canaries have run for a minute.
func ExampleRolloutConfig() {
	roll := fleet.RolloutConfig{Parallel: "10%", Strategy: fleet.Strategy{Canary: 2, Bake: fleet.Duration(time.Minute), Absent: fleet.AbsentSkip}}
	if err := roll.Check(); err != nil {
		panic(err)
	}
	for _, hosts := range []int{5, 200} {
		s := roll.For(hosts)
		fmt.Printf("%d hosts: %d canaries, then %d at a time, %d failure halts it\n", hosts, s.Canary, s.Parallel, s.MaxFailures)
	}
	roll.Strategy.Absent = "ignore"
	fmt.Println(roll.Check())
	// Output:
	// 5 hosts: 2 canaries, then 1 at a time, 1 failure halts it
	// 200 hosts: 2 canaries, then 20 at a time, 1 failure halts it
	// absent: "ignore" is not one of abort, skip
}

// JSON has the durations of a strategy as text.
func ExampleStrategy() {
	data, err := json.Marshal(fleet.Strategy{Bake: fleet.Duration(90 * time.Second)}.WithDefaults(20))
	fmt.Println(string(data), err)
	// Output: {"parallel":2,"bake":"1m30s","max_failures":1,"vote_timeout":"1m0s","absent":"abort","grace":"1m0s"} <nil>
}

// The state of a rollout says what happened, who did it, and what the rollout waits for.
func ExampleState() {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	state := &fleet.State{
		Proposal: fleet.Proposal{Version: 7, Previous: 6, Who: "Ann", Why: "spring", Strategy: fleet.Strategy{Canary: 1, Bake: fleet.Duration(time.Minute)}},
		Created:  noon,
		Gate: fleet.Gate{
			State: fleet.GateOpen, Wave: fleet.WaveCanary, By: "Bob",
			Past: []fleet.GateState{{State: fleet.GateOpen, Paused: true, By: "Bob", Reason: "lunch", At: noon.Add(time.Second)}},
		},
		GateAt:   fleet.Stamp{Zxid: 90, Time: noon.Add(time.Minute)},
		Progress: fleet.Progress{Baked: noon.Add(2 * time.Minute)},
		Called:   []string{"web-1", "web-2"},
		Hosts:    map[string]fleet.HostRecord{"web-1": {State: fleet.HostDone, Version: 7}, "web-2": {State: fleet.HostCommit, Version: 7}},
	}
	fmt.Println(state.Phase(), state.Counts() == fleet.Counts{Called: 2, Commit: 1, Done: 1})
	if waiting := state.Waiting(noon.Add(90 * time.Second)); waiting != (fleet.Waiting{}) {
		fmt.Println(waiting.For, waiting.Text)
	}
	show := func(act fleet.Act) { fmt.Println(act.At.Format(time.TimeOnly), act.Who, act.What, act.Why) }
	for _, act := range state.Acts() {
		show(act)
	}
	// Output:
	// rolling true
	// bake baking, 30 s left
	// 12:00:00 Ann proposed version 7 spring
	// 12:00:01 Bob paused it lunch
	// 12:01:00 Bob resumed it
}

// A proposal is valid until another tree comes into use.
func ExampleProposal() {
	s, site, end := open()
	defer end()
	ctx := context.Background()
	leave := subscribe(ctx, s, site.Path, "web-1")
	defer leave()
	site.Keys["color"] = []byte("green")
	version, err := fleet.Prepare(ctx, s, site)
	if err != nil {
		panic(err)
	}
	name, err := fleet.Propose(ctx, s, fleet.Request{
		Root: site.Path, Version: version.Version, Digest: version.Digest, Base: version.Previous, Strategy: fleet.Strategy{}.WithDefaults(1), Who: "Ann", Why: "spring",
	})
	if err != nil {
		panic(err)
	}
	state, err := fleet.Head(ctx, s, site.Path, name)
	if err != nil {
		panic(err)
	}
	ready, _, err := s.Exists(ctx, site.Path+"/ready")
	holds := state.Proposal.Ready == fleet.ReadyAt{Version: ready.Version, Mzxid: ready.Mzxid}
	fmt.Println(state.Proposal.Version, state.Proposal.Who, state.Proposal.Hosts, holds, err)
	// Output: 2 Ann 1 true <nil>
}

// A record tells how far a host is, and what is wrong there.
func ExampleRecord() {
	record := fleet.Record{
		Version: "1.2.3", Health: fleet.Failing,
		Configs:  map[string]fleet.ConfigUse{"site": {Known: 8, Accepted: 7, Path: "/config/site"}},
		Services: map[string]fleet.ServiceUse{"web": {State: "critical", Check: "self"}},
		Files:    map[string]string{"nginx": "failed@7"},
		Faults:   []fleet.Fault{{Code: "template-failed", Subject: "nginx", Stage: "check", Exit: 1}},
	}
	use := record.UseOf("/config/site")
	fmt.Println("uses", use.Accepted, "knows", use.Newer())
	state, version := record.File("nginx")
	fmt.Println(state, "with version", version)
	for _, fault := range record.Faults {
		fmt.Println(fault)
	}
	worst := slices.MinFunc([]fleet.Health{fleet.OK, record.Health}, func(a, b fleet.Health) int { return a.Rank() - b.Rank() })
	fmt.Println(worst)
	// Output:
	// uses 7 knows 8
	// failed with version 7
	// template-failed nginx: check failed with exit status 1
	// failing
}

// A bake check watches a service while a version runs on the canaries only. The host that coordinates runs its own.
func ExampleBakeCheck() {
	errorRate := 0.2
	check := fleet.BakeCheck{
		Interval: 5 * time.Second, Timeout: time.Second, Fall: 2,
		Run: func(context.Context) (string, error) {
			output := fmt.Sprintf("%.0f%% of the requests failed", 100*errorRate)
			if errorRate > 0.01 {
				return output, errors.New("too many errors")
			}
			return output, nil
		},
	}
	host := fleet.Config{Root: "/config/site", Agent: "web-1", BakeCheck: func() *fleet.BakeCheck { return &check }}
	output, err := host.BakeCheck().Run(context.Background())
	fmt.Println(output, "-", err)
	// Output: 20% of the requests failed - too many errors
}
