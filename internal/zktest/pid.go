package zktest

// PID returns the server's process id, for what the kernel counts of it; 0 while
// it does not run.
func (s *Server) PID() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}
