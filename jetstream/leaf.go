package jetstream

// RemotesJoined is how many of the leaf node connections that this server makes itself are there.
func (s *Server) RemotesJoined() (n int) {
	z, err := s.ns.Leafz(nil)
	if err != nil {
		return 0
	}
	for _, l := range z.Leafs {
		if l.IsSpoke {
			n++
		}
	}
	return n
}
