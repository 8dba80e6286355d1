package files

import "errors"

// RecoverAll puts right what every journal of the state directory is about, as an agent does
// when it starts.
func RecoverAll(cfg TxConfig) ([]Recovered, error) {
	bundles, err := Unfinished(cfg)
	errs := []error{err}
	var list []Recovered
	for _, cfg.Bundle = range bundles {
		r, found, err := Recover(cfg)
		if found {
			list = append(list, r)
		}
		errs = append(errs, err)
	}
	return list, errors.Join(errs...)
}

// Stage stages one file.
func (tx *Tx) Stage(f File, data []byte) (*Staged, error) {
	list, err := tx.StageAll([]Content{{f, data}})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}
