package fleet

import "time"

// AgentsPath is where each agent says how it is.
const AgentsPath = "/zkagent/agents"

// Record is what an agent tells the fleet: the data of the ephemeral
// znode /zkagent/agents/<id>. Readers must expect garbage and other versions.
type Record struct {
	Version   string            `json:"version"`
	Since     time.Time         `json:"since"`
	Templates map[string]string `json:"templates,omitempty"` // name -> state, or state@version
	Leads     []string          `json:"leads,omitempty"`
	Holds     []string          `json:"holds,omitempty"` // groups whose guard holds members
	Error     string            `json:"error,omitempty"` // of the oldest open condition
	More      int               `json:"more,omitempty"`  // templates that did not fit
}
