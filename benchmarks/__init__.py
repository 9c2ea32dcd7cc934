"""The papers' tables and our own measurements, as runnable benchmarks.

=================  =====================================================================================
``ablations``      SEAL's samples, its losses without cross-entropy, and without an energy (SEAL App. E.1)
``auto``           the default, beside each method that it chooses from, on seven sets
``citations``      fields of references from 5, 10 and 50 labels, with rules (UAI Table 4)
``costs``          parameters, training and inference of each system beside cross-entropy (SEAL App. D)
``digits``         completed digits: cross-entropy, soft-F1 and SEAL-NCE, with a picture
``encoders``       what a step of SEAL with an encoder of texts costs, and what cached features save
``energies``       ways in which an energy could teach more, each beside its control, on five sets
``few-labels``     rules, mean teachers and labels known in part, on digits, bibtex and expr_fun
``hypergradient``  implicit gradients against betty and TorchOpt: the same answer, time and memory
``implicit``       each objective without and with the implicit term, on four sets (UAI Table 5)
``known``          labels that are known when predicting, whole sets, and planted errors, on seven sets
``mlc``            feature-based multi-label classification on bibtex, delicious and cal500
``names``          taggers of words alone: tuned rates, likeliest tags and whole spans
``ner``            names in news with every method and global energies (InfNet+ Tables 1, 2, 4)
``overhead``       a SEAL-NCE epoch against the same steps written as bare PyTorch
``parsing``        constituency trees as tags and as sequences of brackets (InfNet+ A.1)
``peers``          what a user would pick instead: chains, trees, neighbours, networks, on six sets
``pos``            parts of speech in tweets with every method (InfNet+ Tables 1 and 2)
``pulls``          the energy's gradient for a label as another varies, as a picture (SEAL Fig. 2)
``residuals``      how well two solvers of implicit gradients solve, in every step of trainings
``roles``          roles of predicates from few labels, with energies, rules and constraints (SEAL Table 3)
``scenes``         digits pasted into photographs: cross-entropy and SEAL, with a picture
``seal``           SEAL as its authors train it, beside the same without the energy (SEAL Table 1)
``seeds``          an epoch of ten replicas together against one alone
``segmentation``   Weizmann horses (SEAL Table 4, UAI supplement Table 5), with a picture
``serve``          ``lossnet serve`` under 60 s of 64 concurrent clients
``small``          thirty sentences, a hundred rows, twenty images: every method at its defaults
``solvers``        what each solver of implicit gradients gets right, as a picture
``speed``          every ratio of speed and scale, from one core to a GPU
``streaming``      memory of ``lossnet predict`` on files of growing size, in parts and as a whole
``structure``      whether labels say something of each other that inputs do not, on six sets
``tables``         every benchmark that a page stands on, cheapest first: what is missing or outdated
``tagging-speed``  how long a task net, Viterbi's algorithm and gradient-based inference take to tag
``text``           topics of texts from frozen features: energies, LACO, SGM, OCD and peers, on three sets
``text-trained``   the same with the encoder trained, by the papers' protocol where their sets are there
``trajectories``   training with 1, 5 and 50 network steps for each energy step, as a picture
=================  =====================================================================================
"""
