types:
	rm -rf .types && mkdir -p .types/freedraft
	for file in api/*; do case $$file in *.py|*.typed) ln -s ../../$$file .types/freedraft/;; esac; done
	for folder in drafters integrations verifier workbench; do ln -s ../../$$folder .types/freedraft/; done
