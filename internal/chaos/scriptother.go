//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/allocnode/allocnode/client"
	"github.com/allocnode/allocnode/internal/chaos/lab"
)

// strangerScripts bring together what does not belong together.
var strangerScripts = []script{
	{"alone-into-cluster", playAloneIntoCluster},
	{"clusters-joined", playClustersJoined},
	{"two-behind-a-hub", playTwoBehindAHub},
	{"one-server-list", playOneServerList},
}

// configureAlone makes n a node that stands alone, with more in its configuration.
func configureAlone(n *lab.Node, more string) error {
	text := fmt.Sprintf(`server_name: %s
listen: "%%[1]s:4222"
jetstream { store_dir: "%%[2]s", domain: alone }
# the lab's first node is %%[3]s
`, n.Name)
	return n.Configure(text + more)
}

// ownAnswer asks one node, as its own client, for ten ids.
func ownAnswer(ctx context.Context, r *rig, n *lab.Node) (a answer, err error) {
	nc, err := r.lab.Connect(n)
	if err != nil {
		return a, err
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, gateBound)
	defer cancel()
	got, err := c.Reserve(ctx, scriptSequence, 10)
	a.Start, a.End = got.Start, got.End
	return a, err
}

// playAloneIntoCluster restarts a node that stood alone with a cluster block: nats-server by itself would delete its stream
// as an orphan after 30 s.
func playAloneIntoCluster(ctx context.Context, r *rig) (string, error) {
	n := r.lab.Extra[0]
	if err := errors.Join(configureAlone(n, ""), n.Start()); err != nil {
		return "", err
	}
	first, err := ownAnswer(ctx, r, n)
	if err != nil {
		return "", err
	}
	if err := errors.Join(n.Stop(), n.ConfigureAs(n.Name, append(r.lab.Nodes[:2:2], n)), n.Start()); err != nil {
		return "", err
	}
	if err := until(ctx, gateBound, "it refuses", func() error {
		if n.Running() {
			return errors.New("it runs")
		}
		return nil
	}); err != nil {
		return "", err
	}
	said := logged(n, 0, "allocnode: ")
	if !strings.Contains(said, "cluster") {
		return "", fmt.Errorf("it ended with %s, and says %q", n.End(), said)
	}
	if err := errors.Join(configureAlone(n, ""), n.Start()); err != nil {
		return "", err
	}
	second, err := ownAnswer(ctx, r, n)
	if err == nil && second.Start < first.End {
		err = fmt.Errorf("ids issued twice: [%d, %d) after [%d, %d)", second.Start, second.End, first.Start, first.End)
	}
	return fmt.Sprintf("refused: %q; alone again it went on at %d", said, second.Start), err
}

// playClustersJoined joins a second cluster, of one node, to the first as a leaf node: both hear requests on one prefix.
func playClustersJoined(ctx context.Context, r *rig) (string, error) {
	for _, n := range r.lab.Nodes {
		if err := n.ConfigureMore(r.lab.Nodes, `leafnodes { listen: "0.0.0.0:7422" }`); err != nil {
			return "", err
		}
	}
	if err := r.startNodes(ctx); err != nil {
		return "", err
	}
	b := &book{r: r}
	if err := b.take(ctx, 10); err != nil {
		return "", err
	}
	other := r.lab.Extra[0]
	if err := errors.Join(configureAlone(other, ""), other.Start()); err != nil {
		return "", err
	}
	if _, err := ownAnswer(ctx, r, other); err != nil { // it is a cluster of its own, and has a log
		return "", err
	}
	if err := other.Stop(); err != nil {
		return "", err
	}
	if err := configureAlone(other, "leafnodes { remotes: [ { url: \"nats://%[3]s:7422\" } ] }\n"); err != nil {
		return "", err
	}
	if err := other.Start(); err != nil {
		return "", err
	}
	seen, err := r.noneServes(ctx, len(r.lab.Nodes)+1)
	if err != nil {
		return "", err
	}
	if err := r.silent(ctx, "joined", 3*time.Second); err != nil {
		return "", err
	}
	if err := other.Stop(); err != nil {
		return "", err
	}
	took, err := r.healthy(ctx, gateBound)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("neither served (%s); %s after they were parted all serve", seen, round(took)), b.take(ctx, 10)
}

// playTwoBehindAHub has two clusters, of one node each, join one plain nats-server as leaf nodes: its clients would be
// answered by both.
func playTwoBehindAHub(ctx context.Context, r *rig) (string, error) {
	for _, n := range r.lab.Extra {
		if err := errors.Join(configureAlone(n, ""), n.Start()); err != nil {
			return "", err
		}
		if _, err := ownAnswer(ctx, r, n); err != nil {
			return "", err
		}
		if err := errors.Join(n.Stop(), configureAlone(n, "leafnodes { remotes: [ { url: \"nats://%[4]s:7422\" } ] }\n")); err != nil {
			return "", err
		}
	}
	if err := startAll(r.lab.Extra...); err != nil {
		return "", err
	}
	seen, err := r.noneServes(ctx, len(r.lab.Extra))
	if err != nil {
		return "", err
	}
	return "neither serves: " + seen, r.silent(ctx, "at the hub", 3*time.Second)
}

// noneServes waits until n nodes answer and each says that it hears another cluster, and returns what one says. A node that has
// just started says something else, and may serve until it has heard the first word of the other, for a second.
func (r *rig) noneServes(ctx context.Context, n int) (seen string, err error) {
	err = until(ctx, gateBound, "none serves", func() error {
		all, err := r.obs.Statuses(n, time.Second)
		if err != nil {
			return err
		}
		if len(all) != n {
			return fmt.Errorf("%d nodes answer", len(all))
		}
		for _, s := range all {
			if s.Ready || !strings.Contains(s.Reason, "another cluster") {
				return fmt.Errorf("%s is %s: %s", s.Name, s.State, s.Reason)
			}
			seen = s.Name + " is " + s.State + ": " + s.Reason
		}
		return nil
	})
	return seen, err
}

// playOneServerList gives a client the addresses of two nodes that stand alone, and takes away the one it talks to.
func playOneServerList(ctx context.Context, r *rig) (string, error) {
	var urls []string
	for _, n := range r.lab.Extra {
		if err := errors.Join(configureAlone(n, ""), n.Start()); err != nil {
			return "", err
		}
		if _, err := ownAnswer(ctx, r, n); err != nil {
			return "", err
		}
		urls = append(urls, n.URL())
	}
	nc, err := r.lab.ConnectAny(urls)
	if err != nil {
		return "", err
	}
	defer nc.Close()
	c, err := client.New(nc)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // after the last answer
	ctx, cancel := context.WithTimeout(ctx, gateBound)
	defer cancel()
	if _, err := c.Reserve(ctx, scriptSequence, 10); err != nil {
		return "", err
	}
	for _, n := range r.lab.Extra {
		if nc.ConnectedUrl() == n.URL() {
			if _, err := n.Kill(); err != nil {
				return "", err
			}
			break
		}
	}
	if err := until(ctx, gateBound, "the client is at the other", func() error {
		if nc.Status() != nats.CONNECTED {
			return errors.New(nc.Status().String())
		}
		return nil
	}); err != nil {
		return "", err
	}
	got, err := c.Reserve(ctx, scriptSequence, 10)
	var other *client.ClusterError
	if !errors.As(err, &other) {
		return "", fmt.Errorf("the other cluster answered %v, %v, and the client took it", got, err)
	}
	return "the client refuses: " + err.Error(), nil
}
