package command

import (
	"slices"
	"testing"
)

func TestEnv_List(t *testing.T) {
	for name, value := range map[string]string{"APP_ONE": "1", "APP_TWO": "2", "DATABASE_URL": "db", "SECRET": "s", "NOTIFY_SOCKET": "/n"} {
		t.Setenv(name, value)
	}
	for _, c := range []struct {
		env  Env
		want []string
	}{
		{Env{}, nil},
		{Env{Pass: []string{"APP_*", "DATABASE_URL"}}, []string{"APP_ONE=1", "APP_TWO=2", "DATABASE_URL=db"}},
		{Env{Set: map[string]string{"APP_TWO": "set", "B": ""}, Pass: []string{"APP_*"}}, []string{"APP_ONE=1", "APP_TWO=set", "B="}},
		{Env{Pass: []string{"NOTIFY_*"}}, nil},
		{Env{Pass: []string{"NOTIFY_SOCKET"}}, []string{"NOTIFY_SOCKET=/n"}},
		{Env{Set: map[string]string{"A": "block"}}.Over(Env{Set: map[string]string{"A": "agent", "B": "agent"}, Pass: []string{"SECRET"}}), []string{"A=block", "B=agent", "SECRET=s"}},
	} {
		got := c.env.List()
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %v, want %v", c.env, got, c.want)
		}
	}
}

// The agent's variables win over those of the settings.
func TestTrigger_EnvironmentOfTheCommand(t *testing.T) {
	c := Command{Env: Env{Set: map[string]string{"A": "1"}}}
	got := Trigger{Event: EventCheck, Name: "t"}.Command(c, []string{"true"}).Env
	if want := []string{"A=1", "ZKAGENT_EVENT=check", "ZKAGENT_TEMPLATE=t"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
