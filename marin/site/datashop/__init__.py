"""The datashop's page: `marin datashop`, a local web app that makes a dataset from files, a wish and a few clicks.

    app          the routes, and the forms' token
    access       the key in the printed address, as a cookie
    shop         what the handlers share
    uploads      files on their way in; taking reads each of them, in a process of its own
    wishes       the form's fields: what is wrong with them, and the config that they make
    trying       a prompt on ten documents, with what the whole sample would cost
    runs         a run's folder and its process, which is `marin datashop run`
    stages       how far a run is, read from its outputs
    samples      kept and dropped documents
    downloads    the dataset with its card, as an archive

Nothing is kept in the server: runs go on without it, and it shows them again when it is started the next time. Files and
names come from strangers: nothing of a file is used that `taking` did not read and write anew, and texts reach a page through
the template engine's escaping only.
"""
