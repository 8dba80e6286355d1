package zktest

// PID returns the server's process id, for the kernel's statistics of it. It is 0 while
// the server does not run.
func (s *Server) PID() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}
