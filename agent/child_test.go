package agent

// childMain is where the test binary becomes an agent of its own.
func childMain() {}
