package node

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/allocnode/allocnode/internal/wire"
	"github.com/allocnode/allocnode/jetstream"
)

func load(t testing.TB, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	err := c.LoadConfig(path, func(err error) { t.Errorf("warning: %v", err) })
	return c, err
}

func TestLoadConfigEveryKey(t *testing.T) {
	c, err := load(t, `
server_name: n1
listen: "127.0.0.1:4333"
jetstream { store_dir: "data/n1" }
accounts { APP { users: [ { user: u, password: p } ] } }
cluster { name: c, listen: "127.0.0.1:6222", routes: ["nats://127.0.0.1:6222"] }
alloc {
	prefix: ids.v1
	nodes: [n1, n2, n3]
	account: APP
	auto_create: false
	timeout: "3s"
	cluster_id: "000102030405060708090a0b0c0d0e0f"
	defaults { first: 100, max: 4294967295, max_count: 500 }
	genesis { key_window: 1000, entry_window: 2000, max_sequences: 30, on_exhaustion: halt }
}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("not valid: %v", err)
	}
	if !c.clustered() || c.Server.Port != 4333 {
		t.Errorf("clustered %v, port %d", c.clustered(), c.Server.Port)
	}
	want := DefaultConfig()
	want.Name, want.DataDir, want.Nodes, want.Prefix, want.Account = "n1", "data/n1", names, "ids.v1", "APP"
	want.AutoCreate, want.Timeout = false, 3*time.Second
	for i := range want.ClusterID {
		want.ClusterID[i] = byte(i)
	}
	want.Defaults = wire.Settings{First: 100, Max: 4294967295, MaxCount: 500}
	want.Genesis = wire.Genesis{KeyWindow: 1000, EntryWindow: 2000, MaxSequences: 30, HaltOnExhaustion: true}
	c.Server = nil
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// What is not given keeps its default, and a file without our block is a whole configuration.
func TestLoadConfigDefaults(t *testing.T) {
	c, err := load(t, `jetstream { store_dir: "d" }`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	c.Server, c.DataDir = nil, ""
	if want := DefaultConfig(); !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// A file for a node beside an existing NATS holds our block alone, and a variable for it.
func TestLoadConfigNATS(t *testing.T) {
	c, err := load(t, `
SECRET: s3cret
alloc {
	name: n1
	data_dir: d1
	nodes: [n1, n2]
	nats {
		urls: ["nats://a:4222", "tls://b:4222"]
		user: u
		password: $SECRET
		tls { ca: ca.pem, cert: c.pem, key: k.pem, handshake_first: true }
		durability_acknowledged: true
	}
}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("not valid: %v", err)
	}
	want := &jetstream.External{
		URLs: []string{"nats://a:4222", "tls://b:4222"}, User: "u", Password: "s3cret", CA: "ca.pem", Cert: "c.pem", Key: "k.pem",
		HandshakeFirst: true, DurabilityAcknowledged: true,
	}
	if !reflect.DeepEqual(c.NATS, want) || c.Name != "n1" || c.DataDir != "d1" || c.Server != nil || c.clustered() {
		t.Errorf("got %+v %+v", c, c.NATS)
	}
	c, err = load(t, `alloc { nats { urls: "nats://a", creds: f1, nkey: f2, token: t } }`)
	if err != nil || c.NATS.Creds != "f1" || c.NATS.NKey != "f2" || c.NATS.Token != "t" || c.NATS.DurabilityAcknowledged {
		t.Errorf("%+v %v", c.NATS, err)
	}
}

func TestLoadConfigFaults(t *testing.T) {
	for text, want := range map[string][]string{
		"alloc { prefix: 7 }":                                  {":1:", `"prefix"`, "must be a string"},
		"alloc { nodes: [ 1 , 2 ] }":                           {`"nodes"`, "list of strings"},
		"alloc { auto_create: 3 }":                             {`"auto_create"`},
		"alloc { timeout: \"soon\" }":                          {`"timeout"`},
		"alloc { cluster_id: \"xyz\" }":                        {`"cluster_id"`, "32 hexadecimal digits"},
		"alloc { cluster_id: \"" + wire.ID{}.String() + "\" }": {`"cluster_id"`},
		"alloc { defaults: 1 }":                                {`"defaults"`, "block"},
		"alloc { defaults { first: -1 } }":                     {`"first"`, "negative"},
		"alloc { genesis { on_exhaustion: explode } }":         {`"on_exhaustion"`, "reject or halt"},
		"alloc { genesis { on_exhaustion: 1 } }":               {`"on_exhaustion"`},
		"\nalloc {\n\n prefixx: a }":                           {":4:", "unknown key", "prefixx"},
		"alloc { genesis { keywindow: 1 } }":                   {"unknown key", "keywindow", "alloc.genesis"},
		"alloc { prefixx: a\n timeout: 1 }":                    {"prefixx", `"timeout"`}, // all faults, not the first
		"allocc { }":                                           {"allocc"},
		"jetstream { sync_interval: \"2m\" }":                  {"sync_interval", "always"},
		"alloc { ":                                             {"node.conf"},
		"\nlisten: 4222\nalloc { nats { urls: a } }":           {":2:1:", "listen", "setting of nobody"},
		"alloc { nats { url: a } }":                            {"unknown key", `"url"`, "alloc.nats"},
		"alloc { nats { tls { cafile: a } } }":                 {"unknown key", "alloc.nats.tls"},
		"alloc { name: n1 }":                                   {"unknown key", `"name"`}, // server_name is its name there
		"alloc { nats: 1 }":                                    {`"nats"`, "block"},
	} {
		_, err := load(t, text)
		if err == nil {
			t.Errorf("%q was taken", text)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v: want %q in it", text, err, w)
			}
		}
	}
	c := DefaultConfig()
	if err := c.LoadConfig(filepath.Join(t.TempDir(), "none.conf"), nil); err == nil {
		t.Error("a missing file was taken")
	}
}

func TestValidateEveryFault(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = "n" + strings.Repeat("x", i)
	}
	clustered := &server.Options{Cluster: server.ClusterOpts{Port: -1}}
	for name, c := range map[string]struct {
		set  func(*Config)
		want []string
	}{
		"name":              {func(c *Config) { c.Name = "a.b" }, []string{`name "a.b"`}},
		"no name":           {func(c *Config) { c.Name = "" }, []string{`name ""`}},
		"long name":         {func(c *Config) { c.Name = strings.Repeat("n", wire.MaxNodeLen+1) }, []string{"at most 64"}},
		"data directory":    {func(c *Config) { c.DataDir = "" }, []string{"data directory"}},
		"port":              {func(c *Config) { c.Port = 65536 }, []string{"port 65536"}},
		"negative port":     {func(c *Config) { c.Port = -2 }, []string{"port -2"}},
		"prefix":            {func(c *Config) { c.Prefix = "a..b" }, []string{`prefix "a..b"`}},
		"prefix wildcard":   {func(c *Config) { c.Prefix = "a.>" }, []string{`prefix "a.>"`}},
		"prefix empty":      {func(c *Config) { c.Prefix = "" }, []string{`prefix ""`}},
		"node name":         {func(c *Config) { c.Server, c.Nodes = clustered, []string{"alone", "b b", "c"} }, []string{`"b b" is not a node name`}},
		"node twice":        {func(c *Config) { c.Server, c.Nodes = clustered, []string{"alone", "b", "b"} }, []string{`"b" is named twice`}},
		"cluster, no nodes": {func(c *Config) { c.Server = clustered }, []string{"needs alloc { nodes"}},
		"gateway, no nodes": {func(c *Config) { c.Server = &server.Options{Gateway: server.GatewayOpts{Port: 7222}} }, []string{"needs alloc { nodes"}},
		"two nodes":         {func(c *Config) { c.Server, c.Nodes = clustered, []string{"alone", "b"} }, []string{"2 named, want 3 or more"}},
		"nodes, no cluster": {func(c *Config) { c.Nodes = names }, []string{"3 named, but there is no cluster block", "is not among n1, n2, n3"}},
		"not among":         {func(c *Config) { c.Server, c.Nodes = clustered, names }, []string{`"alone", is not among`}},
		"too many nodes":    {func(c *Config) { c.Server, c.Nodes = clustered, append(slices.Clone(many), "alone") }, []string{"66 named, at most 64"}},
		"defaults":          {func(c *Config) { c.Defaults.First = 0 }, []string{"defaults"}},
		"defaults max":      {func(c *Config) { c.Defaults.Max = 1 << 63 }, []string{"defaults"}},
		"key window":        {func(c *Config) { c.Genesis.KeyWindow = 0 }, []string{"key_window 0"}},
		"entry window":      {func(c *Config) { c.Genesis.EntryWindow = wire.MaxWindow + 1 }, []string{"entry_window"}},
		"max sequences":     {func(c *Config) { c.Genesis.MaxSequences = 0 }, []string{"max_sequences 0"}},
		"no timeout":        {func(c *Config) { c.Timeout = 0 }, []string{"timeout 0s"}},
		"long timeout":      {func(c *Config) { c.Timeout = 5 * time.Second }, []string{"timeout 5s", "4.5s"}},
		"version":           {func(c *Config) { c.Version = "v1" }, []string{`version "v1"`}},
		"nats":              {func(c *Config) { c.NATS = &jetstream.External{} }, []string{"nats.urls", "durability_acknowledged"}},
		"nats and a port":   {func(c *Config) { c.NATS, c.Port = &jetstream.External{}, 4222 }, []string{"no server of our own"}},
		"leaf node, no domain": {func(c *Config) {
			c.Server = &server.Options{LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{{}}}}
		}, []string{"leafnodes", "domain"}},
		"all at once": {func(c *Config) { *c = Config{Port: -5, Nodes: []string{"a", "a"}} }, []string{
			"name", "data directory", "port", "prefix", "twice", "not among", "defaults", "key_window", "entry_window", "max_sequences", "timeout", "version"}},
	} {
		cfg := DefaultConfig()
		cfg.DataDir = "d"
		if err := cfg.Validate(); err != nil {
			t.Fatalf("the defaults: %v", err)
		}
		c.set(&cfg)
		before := cfg
		err := cfg.Validate()
		if err == nil {
			t.Errorf("%s: no fault", name)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v: want %q in it", name, err, w)
			}
		}
		if !reflect.DeepEqual(before, cfg) {
			t.Errorf("%s: Validate changed the configuration", name)
		}
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: New took it", name)
		}
	}
}

// FuzzConfigBlock decodes any alloc block: no panic, and what is taken and valid is within the bounds that the log's first
// entry will hold for ever.
func FuzzConfigBlock(f *testing.F) {
	for _, text := range []string{
		"", "alloc { }", "alloc: 3", "alloc { prefix: ids, timeout: \"2s\" }", "alloc { nodes: [a, b, c], account: APP }",
		"alloc { cluster_id: \"000102030405060708090a0b0c0d0e0f\", auto_create: no }",
		"alloc { defaults { first: 1, max: 9223372036854775807, max_count: 10k } }",
		"alloc { genesis { key_window: 1, entry_window: 16777216, max_sequences: 2147483648, on_exhaustion: halt } }",
		"alloc { genesis { key_window: -1 } defaults { first: 0 } }", "alloc { genesis: [1] \n defaults: \"x\" }",
		"alloc { prefix: a..b, timeout: \"-1s\" }", "X: 3\nalloc { defaults { first: $X } }", "alloc { alloc { } }",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if strings.Contains(strings.ToLower(string(text)), "include") {
			return // it would read files
		}
		block, err := jetstream.ParseBlock("fuzz", text)
		if err != nil {
			return
		}
		c := DefaultConfig()
		c.DataDir = "d"
		if err := c.decode(block); err != nil {
			return
		}
		if c.Validate() != nil {
			return
		}
		if c.Defaults.Check() != nil || c.Timeout <= 0 || c.Timeout > maxTimeout || len(c.nodes()) != 1 || c.nodes()[0] != c.Name {
			t.Errorf("taken: %+v", c)
		}
		g := c.Genesis
		g.Epoch, g.Nodes = 1, c.nodes()
		b := wire.AppendHeader(nil, &wire.Header{ClusterID: wire.ID{1}, Level: 1, Node: []byte(c.Name),
			ID: wire.EntryID{Incarnation: wire.ID{1}, Counter: 1}, Defaults: c.Defaults})
		b = wire.AppendOp(b, &wire.Op{Kind: wire.KindGenesis, Genesis: &g})
		wire.Seal(b)
		if err := wire.DecodeEntry(b, &wire.Entry{}); err != nil {
			t.Errorf("the genesis of a valid configuration: %v", err)
		}
	})
}
