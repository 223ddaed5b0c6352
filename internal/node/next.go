package node

import (
	"github.com/allocnode/allocnode"
	"github.com/allocnode/allocnode/internal/next"
)

// Take gives ids from the node's own batches.
func (l *link) Take(r *next.Request) {
	if p := l.get(); p != nil {
		p.pool.Take(r)
		return
	}
	r.Done(nil, allocnode.Errorf(allocnode.CodeUnavailable, "the node is starting"))
}
