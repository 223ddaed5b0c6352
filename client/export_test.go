package client

// Queued is how many calls wait to go into a request.
func (c *Client) Queued() int {
	c.merge.mu.Lock()
	defer c.merge.mu.Unlock()
	return len(c.merge.queue)
}

// Flying is how many requests are under way.
func (c *Client) Flying() int {
	c.merge.mu.Lock()
	defer c.merge.mu.Unlock()
	return len(c.merge.flying)
}

// Fetching reports whether a batch is on its way.
func (s *Sequence) Fetching() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetching
}
