package kv

import "github.com/allocnode/allocnode/apply"

// storeHeadAlone is the mutant CursorFirst: head in a transaction of its own, with the sum of the records that are there. Not
// part of the product.
func (c *Catalog) storeHeadAlone(head apply.Head) error {
	txn := c.db.NewTransaction(true)
	defer txn.Discard()
	_, s, err := storedHead(txn)
	if err != nil {
		return err
	}
	if err := txn.Set(keyHead, appendHead(nil, kindHead, head, s)); err != nil {
		return err
	}
	return c.commitTxn(txn)
}
